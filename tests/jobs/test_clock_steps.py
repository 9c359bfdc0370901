"""Steps of the clock of the database's host."""

import pytest

from gpusched.lib.db.sql import execute, rows
from jobs.lifecycle.clock_steps import end_waits_of_the_future
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def wait_until(job: int, seconds: float, *, is_chosen: bool = False) -> None:
    """Let a job wait: as a retry does, or as its submitter has chosen."""
    chosen = ", not_before = now() + make_interval(secs => %(s)s)" if is_chosen else ""
    execute(
        f"UPDATE jobs_job SET eligible_at = now() + make_interval(secs => %(s)s){chosen} WHERE id = %(id)s",
        {"s": seconds, "id": job},
    )


def state_of(job: int) -> str:
    return str(rows("SELECT state FROM jobs_job WHERE id = %s", [job])[0][0])


def test_job_whose_pause_began_by_a_clock_that_was_ahead_starts(user, tenant):
    """Its server booted with the clock of another year, and the job was requeued before a time service set it back."""
    make_node()
    stuck, retried, later = (submit(user, tenant) for _ in range(3))
    wait_until(stuck, 30 * 86_400)
    wait_until(retried, 3600)
    wait_until(later, 30 * 86_400, is_chosen=True)
    run_cycle()
    assert state_of(stuck) == "pending"
    assert end_waits_of_the_future() == 1
    run_cycle()
    assert [state_of(job) for job in (stuck, retried, later)] == ["scheduled", "pending", "pending"]
    assert end_waits_of_the_future() == 0
