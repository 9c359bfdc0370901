"""End the waits of jobs that began while the clock of the database was ahead, as after a boot with a wrong one."""

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import query, retry_atomic
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
