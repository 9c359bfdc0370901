"""The class of an end: from the agent's word to the attempt, the sentence and the next step."""

import pytest

from jobs.api.attempts import represent_attempt
from jobs.listing import representation
from jobs.models import Job
from scheduling.whatif import explain
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def last_attempt(job_id):
    from gpusched.lib.db.sql import query

    return represent_attempt(
        query("SELECT * FROM jobs_attempt WHERE job_id = %s ORDER BY number DESC LIMIT 1", [job_id])[0]
    )


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ({"exit_code": 1, "exit_class": "cuda_oom"}, "cuda_oom"),
        ({"exit_code": 137, "exit_class": "host_oom"}, "host_oom"),
        ({"exit_code": 1}, "user_exit"),
        ({"exit_code": 1, "exit_class": "a later idea"}, "user_exit"),
        ({"exit_code": 1, "exit_class": "preempted"}, "user_exit"),
        ({"exit_code": 0, "exit_class": "cuda_oom"}, None),
        ({"exit_code": None, "signal": 9, "reason": "signalled", "exit_class": "host_oom"}, "host_oom"),
        ({"exit_code": None, "signal": 11, "reason": "signalled"}, "signal"),
        ({"exit_code": None, "signal": 15, "reason": "time_limit", "exit_class": "cuda_oom"}, "time_limit"),
        ({"exit_code": None, "reason": "node_rebooted"}, "node_lost"),
        ({"exit_code": None, "reason": "launch_failed", "detail": "x: not found"}, None),
    ],
)
def test_exit_class_is_stored_with_attempt_and_rank(user, tenant, end, expected):
    node, job_id = make_node(), submit(user, tenant, requeue=False)
    run_cycle()
    node.end(*node.start_all(), **end)
    shown = last_attempt(job_id)
    assert (shown["class"], shown["ranks"][0]["class"]) == (expected, expected)


def test_failed_job_names_its_exit_class_and_next_step(user, tenant):
    node, job_id = make_node(), submit(user, tenant)
    run_cycle()
    node.end(*node.start_all(), exit_code=1, exit_class="cuda_oom")
    reason = explain.explain(job_id, identity_for(user))
    assert reason["sentence"] == "exited with code 1: CUDA ran out of GPU memory"
    assert "smaller batch" in reason["next_step"]
    assert last_attempt(job_id)["sentence"] == reason["sentence"]


def test_job_waiting_for_its_retry_names_the_last_exit_class(user, tenant):
    node, job_id = make_node(), submit(user, tenant, max_retries=1)
    run_cycle()
    node.end(*node.start_all(), exit_code=1, exit_class="disk_full")
    run_cycle()
    [job] = representation.select("j.id = %s", [job_id])
    assert job["reason"]["sentence"].endswith("(the last one: no space was left on a disk that it wrote to)")


def test_gang_has_the_exit_class_of_the_rank_that_failed_first(user, tenant):
    """Its report arrives before the others have ended, in another message."""
    nodes = [make_node(gpus=4), make_node(gpus=4)]
    job_id = submit(user, tenant, gpu_count=8, gang_scheduling=True)
    run_cycle()
    (bad, bad_node), (good, good_node) = [(node.start_all()[0], node) for node in nodes]
    bad_node.end(bad, exit_code=1, exit_class="host_oom")
    good_node.end(good, exit_code=None, signal=15, reason="rank_failed")
    assert Job.objects.get(pk=job_id).evidence["class"] == "host_oom"
    assert sorted(str(rank["class"]) for rank in last_attempt(job_id)["ranks"]) == ["None", "host_oom"]
