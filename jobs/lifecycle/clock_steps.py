"""Set the times of jobs right after the clock of the database was set back: of what runs, so that it is charged for as
long as it ran (A53), and of waits that began while the clock was ahead, as after a boot with a wrong one."""

from datetime import timedelta

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import execute, query, retry_atomic
from jobs.lifecycle import states
from jobs.lifecycle.attempt_end import LONGEST_RETRY_PAUSE_SECONDS

# No pause is longer. Only the submitter chooses a later time, by `not_before`.
_END_WAITS = """
    UPDATE jobs_job SET eligible_at = greatest(not_before, now())
     WHERE state IN ('pending', 'held') AND eligible_at > greatest(not_before, now() + make_interval(secs => %s))
    RETURNING id
"""


def end_waits_of_the_future() -> int:
    """Let jobs start that wait for a time which no pause reaches: before, the clock was set back. Return how many."""
    ids = [row["id"] for row in retry_atomic(lambda: query(_END_WAITS, [LONGEST_RETRY_PAUSE_SECONDS + 60]))]
    if ids:
        events.changed("jobs", ids)
        wake.request_cycle()
    return len(ids)


_IS_LIVE = "state IN ('scheduled', 'running', 'stopping')"
_MOVE_BACK = f"""
    UPDATE jobs_job SET started_at = started_at - %(by)s, reason_since = reason_since - %(by)s
     WHERE id = ANY(%(jobs)s) AND {_IS_LIVE}
"""
_MOVE_ATTEMPTS_BACK = """
    UPDATE jobs_attempt
       SET scheduled_at = scheduled_at - %(by)s, started_at = started_at - %(by)s, saved_at = saved_at - %(by)s
     WHERE job_id = ANY(%(jobs)s) AND ended_at IS NULL
"""


def move_live_back(by: timedelta) -> list[int]:
    """Move the times of running attempts back by as much as the clock was set back. Return the ids of the jobs."""
    jobs = [row["id"] for row in query(f"SELECT id FROM jobs_job WHERE {_IS_LIVE}")]
    states.lock_jobs(jobs)
    for statement in (_MOVE_BACK, _MOVE_ATTEMPTS_BACK):
        execute(statement, {"by": by, "jobs": jobs})
    return jobs
