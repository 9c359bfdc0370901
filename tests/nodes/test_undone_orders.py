"""The ends that agents report again after a restore of the database, which lacks the orders that led to them (A85)."""

import pytest

from gpusched.protocol.agent_messages import Run, Started, Stop
from jobs.models import Job
from scheduling.whatif import explain
from tests.factories import identity_for, make_node, now, run_cycle, submit
from tests.nodes.test_classes import last_attempt

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize(
    ("reason", "may_requeue", "state"),
    [
        ("preempted", True, "pending"),
        ("preempted", False, "preempted"),
        ("requeued", True, "pending"),
        ("cancelled", True, "cancelled"),
        ("superseded", True, "pending"),
        ("superseded", False, "failed"),
    ],
)
def test_end_by_an_undone_order_has_the_effect_of_the_order(user, tenant, reason, may_requeue, state):
    """The job failed, whatever had been ordered: a preempted one never ran again."""
    node, job_id = make_node(), submit(user, tenant, requeue=may_requeue)
    run_cycle()
    node.end(*node.start_all(), exit_code=None, signal=15, reason=reason)
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.retries_used) == (state, 0)
    assert "?" not in last_attempt(job_id)["sentence"]
    assert "?" not in explain.explain(job_id, identity_for(user))["sentence"]


def test_gang_of_which_one_rank_reports_an_undone_order_first_returns_to_the_queue(user, tenant):
    nodes, job_id = (
        [make_node(gpus=1), make_node(gpus=1)],
        submit(user, tenant, gpu_count=2, ranks=2, gang_scheduling=True),
    )
    run_cycle()
    keys = [node.start_all() for node in nodes]
    for node, ended in zip(nodes, keys, strict=True):
        node.end(*ended, exit_code=None, signal=15, reason="preempted")
    assert Job.objects.get(pk=job_id).state == "pending"


@pytest.mark.parametrize(("has_same", "state"), [(True, "running"), (False, "stopping"), (None, "running")])
def test_rank_that_has_other_gpus_than_it_was_placed_on_is_stopped(user, tenant, has_same, state):
    """The database had the job as pending and placed it anew, while its agent ran it on another GPU: other jobs were
    placed on that one, and waited there in vain."""
    node, job_id = make_node(gpus=2), submit(user, tenant)
    run_cycle()
    [order] = node.sync().assignments
    assert isinstance(order, Run)
    placed = order.spec.device_uuids
    others = [device.uuid for device in node.devices if device.uuid not in placed]
    devices = {True: placed, False: others, None: None}[has_same]
    node.held = [order.key]
    answer = node.sync(Started(key=order.key, at=now(), pid=1, device_uuids=devices))
    assert Job.objects.get(pk=job_id).state == state
    assert [isinstance(found, Stop) for found in answer.assignments] == [True] * (state == "stopping")
    if state == "stopping":
        node.end(order.key, exit_code=None, signal=15, reason="superseded")
        assert Job.objects.get(pk=job_id).state == "pending"
