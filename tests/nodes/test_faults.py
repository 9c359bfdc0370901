"""Repeated node faults of a job: growing pauses, and an end after lost supervisors."""

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.actions import job_actions
from jobs.lifecycle import attempt_end
from jobs.lifecycle.attempt_end import AttemptOutcome
from jobs.listing import representation
from jobs.models import Attempt, Job
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def fail(node, job_id, reason):
    """Runs the job's next attempt, now, and lets it end so; gives the job and the pause before the one after it."""
    Job.objects.filter(pk=job_id, state="pending").update(eligible_at=None)
    run_cycle()
    [key] = node.start_all()
    node.end(key, exit_code=None, reason=reason)
    job = Job.objects.get(pk=job_id)
    pause = None if job.eligible_at is None else round((job.eligible_at - timezone.now()).total_seconds() / 10) * 10
    return job, pause


def test_consecutive_node_faults_pause_longer_up_to_ten_minutes(user, tenant):
    """A38: none of them uses up a retry."""
    node, job_id = make_node(), submit(user, tenant, max_retries=1)
    pauses = [fail(node, job_id, "node_fault") for _ in range(9)]
    assert [pause for _, pause in pauses] == [None, 10, 20, 40, 80, 160, 320, 600, 600]
    assert {(job.state, job.retries_used) for job, _ in pauses} == {("pending", 0)}


def test_pause_is_shown_with_its_time_and_outlives_a_cycle(user, tenant):
    node, job_id = make_node(), submit(user, tenant)
    fail(node, job_id, "node_fault")
    job, _ = fail(node, job_id, "supervisor_lost")
    run_cycle()
    now = Job.objects.get(pk=job_id)
    assert (now.state, now.reason, now.evidence) == ("pending", "retry_backoff", job.evidence)
    assert (job.evidence["fault"], job.evidence["in_a_row"]) == ("supervisor_lost", 2)
    [shown] = representation.select("j.id = %s", [job_id])
    assert shown["reason"]["sentence"].endswith("(faults of nodes in a row: 2)")
    assert job.evidence["at"] == job.eligible_at.isoformat(timespec="seconds")


def test_fifth_consecutive_lost_supervisor_ends_the_job(user, tenant):
    node, job_id = make_node(), submit(user, tenant, max_retries=9)
    states = [fail(node, job_id, "supervisor_lost")[0].state for _ in range(5)]
    assert states == ["pending"] * 4 + ["failed"]
    job = Job.objects.get(pk=job_id)
    assert (job.reason, job.evidence["in_a_row"], job.retries_used) == ("supervisor_lost", 5, 0)
    [shown] = representation.select("j.id = %s", [job_id])
    assert shown["reason"]["sentence"] == f"its supervisor process on {node.name} was killed, 5 times in a row"
    assert "Nodes page" in shown["reason"]["next_step"]


def test_retry_by_a_person_resets_the_count_of_lost_supervisors(user, tenant):
    node, job_id = make_node(), submit(user, tenant)
    for _ in range(5):
        fail(node, job_id, "supervisor_lost")
    job_actions.retry(job_id, identity_for(user))
    assert [fail(node, job_id, "supervisor_lost")[1] for _ in range(2)] == [None, 10]
    assert Job.objects.get(pk=job_id).state == "pending"


def test_other_fault_resets_the_count_of_lost_supervisors(user, tenant):
    node, job_id = make_node(), submit(user, tenant)
    for reason in [*["supervisor_lost"] * 4, "node_rebooted", *["supervisor_lost"] * 4]:
        job, _ = fail(node, job_id, reason)
        assert job.state == "pending"
    assert fail(node, job_id, "supervisor_lost")[0].state == "failed"


def test_own_end_of_the_job_resets_the_pauses(user, tenant):
    node, job_id = make_node(), submit(user, tenant, max_retries=1)
    assert [fail(node, job_id, "node_fault")[1] for _ in range(3)] == [None, 10, 20]
    run_cycle()
    Job.objects.filter(pk=job_id).update(eligible_at=None)
    run_cycle()
    node.end(*node.start_all(), exit_code=3)
    assert [fail(node, job_id, "node_fault")[1] for _ in range(2)] == [None, 10]


def test_fault_streaks_need_a_single_query_and_none_for_other_ends(user, tenant, django_assert_num_queries):
    ids = [submit(user, tenant) for _ in range(3)]
    long_ago = timezone.now() - timedelta(hours=1)
    for job_id, faults in zip(ids, range(3), strict=True):
        for number in range(1, faults + 1):
            Attempt.objects.create(
                job_id=job_id, number=number, scheduled_at=long_ago, ended_at=long_ago, reason="node_lost"
            )
    ends = [
        AttemptOutcome(job_id, faults + 1, "node_fault", long_ago) for job_id, faults in zip(ids, range(3), strict=True)
    ]
    with django_assert_num_queries(1):
        reasons = attempt_end.fault_streaks(ends)
    assert [reasons[job_id].faults for job_id in ids[1:]] == [1, 2]
    with django_assert_num_queries(0):
        assert attempt_end.fault_streaks([AttemptOutcome(ids[0], 9, "exited", long_ago, exit_code=0)]) == {}
