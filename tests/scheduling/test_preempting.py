"""Preemption through the whole server: victims are stopped, their places withheld, and both owners see the cause."""

import pytest

from gpusched.protocol.agent_messages import Stop
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import JobState
from jobs.actions import job_actions
from jobs.listing import representation
from jobs.models import Job, JobEvent
from nodes.models import Allocation
from scheduling.cycle import snapshot
from scheduling.cycle.commit import commit
from scheduling.engine.model import Policy
from scheduling.engine.planner import plan
from scheduling.models import Claim
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle, submit

AT_ONCE = Policy(min_runtime_seconds=0, preemption_delay_seconds=0)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(snapshot, "policy", lambda: AT_ONCE)


def states_of(job_id):
    return representation.select("j.id = %s", [job_id])[0]


def test_victim_is_requeued_with_its_queue_time_and_the_preemptor_starts_in_its_place(user, tenant):
    """A16: the queue time is the original one; quota and usage return with the devices."""
    node = make_node(gpus=2)
    low = submit(user, tenant, gpu_count=2, priority=100)
    run_cycle()
    [key] = node.start_all()
    queued_at = Job.objects.get(pk=low).submitted_at
    urgent = submit(user, tenant, gpu_count=2, priority=1500)
    run_cycle()
    assert states_of(low)["state"] == JobState.STOPPING
    assert states_of(low)["reason"]["sentence"] == f"preempted for job {urgent} of tenant nlp, which has priority 1500"
    reason = states_of(urgent)["reason"]
    assert reason["code"] == "reclaim_pending"
    assert reason["sentence"].startswith("waits for 2 GPUs of 1 job, being stopped for it by rule priority; free at ")
    [order] = [order for order in node.sync().assignments if isinstance(order, Stop)]
    assert (order.key, order.reason, order.grace_seconds) == (key, EndReason.PREEMPTED, 30)
    latecomer = submit(user, tenant, gpu_count=1, priority=1600)
    node.end(key, exit_code=None, signal=15, reason="preempted")
    victim = Job.objects.get(pk=low)
    assert (victim.state, victim.submitted_at, victim.retries_used) == (JobState.PENDING, queued_at, 0)
    assert not Allocation.objects.exists()
    run_cycle()
    assert Job.objects.get(pk=urgent).state == JobState.SCHEDULED
    assert Job.objects.get(pk=latecomer).state == JobState.PENDING
    assert not Claim.objects.exists()
    [attempt] = victim.attempts.all()
    assert (attempt.reason, attempt.evidence["by_job"], attempt.evidence["rule"]) == ("preempted", urgent, "priority")
    [note] = JobEvent.objects.filter(job_id=urgent, kind="preempting")
    assert note.data == {"victims": [low], "of_other_tenants": 0, "rule": "priority"}


def test_job_without_requeue_ends_as_preempted(user, tenant):
    node = make_node(gpus=1)
    low = submit(user, tenant, priority=100, requeue=False)
    run_cycle()
    [key] = node.start_all()
    submit(user, tenant, priority=1500)
    run_cycle()
    node.end(key, exit_code=None, signal=15, reason="preempted")
    assert Job.objects.get(pk=low).state == JobState.PREEMPTED
    assert states_of(low)["reason"]["code"] == "preempted"


def test_no_job_is_stopped_for_a_job_cancelled_meanwhile(user, tenant):
    node = make_node(gpus=1)
    low = submit(user, tenant, priority=100)
    run_cycle()
    node.start_all()
    urgent = submit(user, tenant, priority=1500)
    seen, comparison = snapshot.load()
    created = plan(seen, AT_ONCE, comparison.now)
    assert created.preemptions
    job_actions.cancel(urgent, identity_for(user))
    assert commit(created, seen, comparison).preempted == 0
    assert Job.objects.get(pk=low).state == JobState.RUNNING
    run_cycle()
    assert not Claim.objects.exists()


def test_claim_ends_with_its_job(user, tenant):
    """The released devices are free for any job, first of all the victim."""
    node = make_node(gpus=1)
    low = submit(user, tenant, priority=100)
    run_cycle()
    [key] = node.start_all()
    urgent = submit(user, tenant, priority=1500)
    run_cycle()
    job_actions.cancel(urgent, identity_for(user))
    node.end(key, exit_code=None, signal=15, reason="preempted")
    run_cycle()
    assert not Claim.objects.exists()
    assert Job.objects.get(pk=low).state == JobState.SCHEDULED


def test_guarantee_is_reclaimed_from_a_borrower_under_that_rule():
    owed = make_tenant("owed", quota={"guaranteed_gpus": 1})
    borrower = make_tenant("borrower")
    node = make_node(gpus=2)
    low = [submit(make_member(borrower), borrower, priority=900) for _ in range(2)]
    run_cycle()
    node.start_all()
    submit(make_member(owed), owed, priority=500)
    run_cycle()
    [stopped] = [job for job in low if Job.objects.get(pk=job).state == JobState.STOPPING]
    assert states_of(stopped)["reason"]["sentence"] == (
        "preempted for a job of another tenant, which is within the guarantee of its tenant"
    )
