"""Jobs that hang on a GPU that is gone (A38): stopped by the control plane, ended as a fault of the node, run
elsewhere."""

from datetime import timedelta

import pytest
from django.db.models import F
from msgspec.structs import replace

from gpusched.protocol.agent_messages import Reading, Stop, Xid
from jobs.actions import job_actions
from jobs.models import Attempt, Job
from nodes.health import device_health
from nodes.models import Device, Incident
from nodes.models import Reading as NodeReading
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def read(node, *, index=0, **fields):
    node.sync(readings=[Reading(uuid=node.devices[index].uuid, **fields)])


def pass_seconds(seconds):
    Incident.objects.update(since=F("since") - timedelta(seconds=seconds))
    run_cycle()


def state(job_id):
    return Job.objects.get(pk=job_id).state


@pytest.fixture
def node(user, tenant):
    return make_node(gpus=1)


@pytest.fixture
def hanging(node, user, tenant):
    """A job that runs on the node's GPU and takes no notice of anything."""
    job_id = submit(user, tenant, max_retries=1)
    run_cycle()
    node.start_all()
    return job_id


@pytest.mark.parametrize(
    ("reading", "detail"),
    [
        ({"lost": True}, "GPU 0 was lost"),
        ({"xids": [Xid(code=79, seconds_ago=0)]}, "GPU 0 failed: Xid 79: the GPU has fallen off the bus"),
    ],
)
def test_job_that_hangs_on_a_vanished_gpu_is_stopped_and_runs_elsewhere(node, hanging, reading, detail):
    """A38: not the user's failure; no retry is used up, and the queue time stays."""
    queued_at = Job.objects.get(pk=hanging).submitted_at
    read(node, **reading)
    pass_seconds(9)
    assert state(hanging) == "running"
    pass_seconds(2)
    assert state(hanging) == "stopping"
    [order] = node.sync().assignments
    assert isinstance(order, Stop)
    assert order.reason == "node_fault"
    node.end(order.key, exit_code=None, signal=9, reason=order.reason)
    attempt = Attempt.objects.get(job_id=hanging)
    assert (attempt.reason, attempt.evidence["detail"]) == ("node_fault", detail)
    job = Job.objects.get(pk=hanging)
    assert (job.state, job.retries_used, job.submitted_at) == ("pending", 0, queued_at)
    other = make_node(gpus=1)
    run_cycle()
    assert other.start_all() == [f"{hanging}.2.0"]


def test_job_that_ends_well_meanwhile_has_completed(node, hanging):
    read(node, lost=True)
    pass_seconds(11)
    node.end(f"{hanging}.1.0", exit_code=0)
    assert state(hanging) == "completed"


def test_cancel_takes_precedence_over_a_lost_gpu(node, hanging, user):
    read(node, lost=True)
    pass_seconds(11)
    job_actions.cancel(hanging, identity_for(user))
    node.end(f"{hanging}.1.0", exit_code=None, signal=9, reason="node_fault")
    assert state(hanging) == "cancelled"


def test_gpu_that_returns_in_time_changes_nothing(node, hanging):
    read(node, lost=True)
    pass_seconds(9)
    read(node)
    pass_seconds(60)
    assert state(hanging) == "running"


@pytest.mark.parametrize("code", [48, 63, 94, 119])
def test_other_hardware_faults_do_not_stop_running_jobs(node, hanging, code):
    read(node, xids=[Xid(code=code, seconds_ago=0)])
    pass_seconds(600)
    assert state(hanging) == "running"
    read(node, lost=True)
    run_cycle()
    assert state(hanging) == "stopping", "it is degraded, and now it is gone, too"


def test_degraded_gpu_that_is_listed_no_more_also_stops_its_job(node, hanging):
    """As one that is gone after its driver was loaded again. Its latest reading is not true any more."""
    read(node, xids=[Xid(code=48, seconds_ago=0)], occupancy="clear", temperature_celsius=40)
    node.sync(facts=replace(node.facts(), devices=[]))
    run_cycle()
    assert state(hanging) == "running"
    pass_seconds(11)
    assert state(hanging) == "stopping"
    assert NodeReading.objects.get().temperature_celsius is None


def test_quarantined_gpu_that_vanishes_also_stops_its_job(node, hanging):
    device_health.quarantine(Device.objects.get().pk, "fan", "root")
    pass_seconds(600)
    assert state(hanging) == "running"
    read(node, lost=True)
    run_cycle()
    assert state(hanging) == "stopping"


def test_only_the_node_of_the_vanished_gpu_is_at_fault_for_a_gang(user, tenant):
    """A38, A39: the other nodes must not be held for it."""
    nodes = [make_node(gpus=4), make_node(gpus=4)]
    job_id = submit(user, tenant, gpu_count=8, gang_scheduling=True)
    run_cycle()
    for node in nodes:
        node.start_all()
    read(nodes[1], lost=True, index=2)
    pass_seconds(11)
    orders = {node.name: node.sync().assignments[0] for node in nodes}
    reading = {name: order.reason for name, order in orders.items() if isinstance(order, Stop)}
    assert reading == {
        nodes[0].name: "rank_failed",
        nodes[1].name: "node_fault",
    }
    for node in nodes:
        node.end(orders[node.name].key, exit_code=None, signal=15, reason=reading[node.name])
    attempt = Attempt.objects.get(job_id=job_id)
    assert (attempt.reason, attempt.evidence["node"]) == ("node_fault", nodes[1].name)
    assert state(job_id) == "pending"


@pytest.mark.parametrize("is_read", [True, False])
def test_lost_gpu_that_is_cleared_gets_no_job_before_its_agent_has_it_again(node, user, tenant, is_read):
    if is_read:
        read(node, occupancy="clear")
    devices, node.devices = node.devices, []
    node.sync(facts=node.facts())
    assert device_health.clear(Device.objects.get().pk).endswith("is cleared, but it is lost")
    job_id = submit(user, tenant, gpu_count=1)
    run_cycle()
    assert state(job_id) == "pending"
    node.devices = devices
    node.sync(facts=node.facts())
    run_cycle()
    assert state(job_id) == "scheduled"
