"""Which ends are retried: all of the job's own doing, or only those of the classes that it names."""

import pytest

from jobs.models import Job
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def after(user, tenant, end, **fields):
    """The state that follows an end, and how many retries it has used up."""
    node, job_id = make_node(), submit(user, tenant, **{"max_retries": 2, **fields})
    run_cycle()
    node.end(*node.start_all(), **end)
    job = Job.objects.get(pk=job_id)
    return job.state, job.retries_used


CUDA = {"exit_code": 1, "exit_class": "cuda_oom"}
KILLED = {"exit_code": None, "signal": 9, "reason": "signalled"}
LIMIT = {"exit_code": None, "signal": 15, "reason": "time_limit"}
NOT_FOUND = {"exit_code": None, "reason": "launch_failed", "detail": "trian: No such file or directory"}


@pytest.mark.parametrize("end", [CUDA, KILLED, LIMIT, {"exit_code": 3}, {**KILLED, "exit_class": "host_oom"}])
def test_all_failures_are_retried_without_classes(user, tenant, end):
    assert after(user, tenant, end) == ("pending", 1)


@pytest.mark.parametrize(
    ("retry_on", "end", "expected"),
    [
        (["cuda_oom"], CUDA, ("pending", 1)),
        (["disk_full", "cuda_oom"], CUDA, ("pending", 1)),
        (["host_oom"], CUDA, ("failed", 0)),
        (["user_exit"], CUDA, ("failed", 0)),
        (["user_exit"], {"exit_code": 3}, ("pending", 1)),
        (["signal"], KILLED, ("pending", 1)),
        (["signal"], LIMIT, ("failed", 0)),
    ],
)
def test_only_the_listed_classes_are_retried(user, tenant, retry_on, end, expected):
    assert after(user, tenant, end, retry_on=retry_on) == expected


def test_launch_failure_is_not_retried(user, tenant):
    assert after(user, tenant, NOT_FOUND) == ("failed", 0)


def test_node_fault_requeues_whatever_the_classes(user, tenant):
    """A38."""
    fault = {"exit_code": None, "reason": "node_fault"}
    assert after(user, tenant, fault, max_retries=0, retry_on=["cuda_oom"]) == ("pending", 0)
