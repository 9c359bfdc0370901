"""A GPU that vanishes under a job is a fault of the node, never of the job (A38)."""

import pytest

from gpusched.protocol.agent_messages import Ended, Reading, Xid
from jobs.models import Attempt, Job
from nodes.models import Device
from tests.factories import make_node, now, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def running(user, tenant, gpus=2, **fields):
    node = make_node(gpus=gpus)
    job = submit(user, tenant, **fields)
    run_cycle()
    [key] = node.start_all()
    return node, job, key, Device.objects.get(held_whole=1).uuid


def end(node, key, *readings, **fields):
    node.held = []
    how = {"key": key, "at": now(), "reason": "exited", "exit_code": 1, **fields}
    node.sync(Ended(**how), readings=list(readings))


def attempt():
    found = Attempt.objects.get()
    return found.reason, found.outcomes["0"]["detail"]


@pytest.mark.parametrize("how", [{}, {"reason": "signalled", "exit_code": None, "signal": 6}])
def test_failure_on_a_gpu_that_is_lost_by_then_is_a_node_fault(how, user, tenant):
    """A38: the device is lost, and the job goes back to the queue without using up a retry."""
    node, job, key, uuid = running(user, tenant, max_retries=0)
    end(node, key, Reading(uuid=uuid, lost=True), **how)
    assert attempt() == ("node_fault", f"GPU {Device.objects.get(uuid=uuid).index} was lost")
    assert Device.objects.get(uuid=uuid).health == "lost"
    assert Job.objects.get(pk=job).state == "pending"


def test_failure_on_a_gpu_reported_lost_before_is_a_node_fault(user, tenant):
    node, job, key, uuid = running(user, tenant)
    node.sync(readings=[Reading(uuid=uuid, lost=True)])
    assert Job.objects.get(pk=job).state == "running"
    end(node, key)
    assert attempt()[0] == "node_fault"


def test_failed_hardware_is_named_in_the_detail(user, tenant):
    node, _, key, uuid = running(user, tenant)
    Device.objects.filter(uuid=uuid).update(health="degraded", health_note="Xid 79")
    end(node, key)
    assert attempt() == ("node_fault", f"GPU {Device.objects.get(uuid=uuid).index} failed: Xid 79")


def test_failure_beside_another_lost_gpu_is_the_jobs_own(user, tenant):
    node, job, key, uuid = running(user, tenant)
    [other] = [device.uuid for device in node.devices if device.uuid != uuid]
    end(node, key, Reading(uuid=other, lost=True))
    assert attempt() == ("exited", "")
    assert Job.objects.get(pk=job).state == "failed"


@pytest.mark.parametrize(
    "how", [{"exit_code": 0}, {"reason": "time_limit", "exit_code": None}, {"reason": "cancelled", "exit_code": 1}]
)
def test_end_that_is_not_a_failure_stays_unchanged(how, user, tenant):
    node, _, key, uuid = running(user, tenant)
    end(node, key, Reading(uuid=uuid, lost=True), **how)
    assert Attempt.objects.get().outcomes["0"]["reason"] == how.get("reason", "exited")


def test_report_of_another_node_is_ignored(user, tenant):
    node, job, key, uuid = running(user, tenant)
    Device.objects.filter(uuid=uuid).update(health="lost")
    end(make_node(gpus=1), key)
    assert Job.objects.get(pk=job).state == "running"


@pytest.mark.parametrize("code", [48, 63, 64, 74, 79, 94, 95, 119])
def test_hardware_xid_makes_the_failure_a_node_fault(code, user, tenant):
    node, job, key, uuid = running(user, tenant, max_retries=0)
    end(node, key, Reading(uuid=uuid, xids=[Xid(code=code, seconds_ago=0)]))
    reason, detail = attempt()
    assert reason == "node_fault" and f"failed: Xid {code}: " in detail
    assert Device.objects.get(uuid=uuid).health == "degraded"
    assert Job.objects.get(pk=job).state == "pending"


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_application_xid_is_only_noted_with_its_failure(code, user, tenant):
    node, job, key, uuid = running(user, tenant)
    end(node, key, Reading(uuid=uuid, xids=[Xid(code=code, seconds_ago=0)]), detail="said something")
    reason, detail = attempt()
    assert reason == "exited" and detail.startswith("said something; GPU ") and f": Xid {code}: the program" in detail
    assert Device.objects.get(uuid=uuid).health == "ok"
    assert Job.objects.get(pk=job).state == "failed"


def test_xid_from_before_the_start_is_not_the_jobs(user, tenant):
    """Agents repeat an Xid for a minute, and the next job starts within milliseconds."""
    node, _, key, uuid = running(user, tenant)
    end(node, key, Reading(uuid=uuid, xids=[Xid(code=31, seconds_ago=30), Xid(code=79, seconds_ago=30)]))
    assert attempt() == ("exited", "")
