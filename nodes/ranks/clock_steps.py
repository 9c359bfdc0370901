"""Keep the run times of ranks right after the clock of the database was set back (A53)."""

from collections.abc import Sequence
from datetime import timedelta

from gpusched.lib.db.sql import execute

_ASSIGNMENTS = """
    UPDATE nodes_assignment SET started_at = started_at - %(by)s, missing_since = missing_since - %(by)s
     WHERE job_id = ANY(%(jobs)s) AND state <> 'ended'
"""


def move_live_back(jobs: Sequence[int], by: timedelta) -> None:
    """Move the times of the ranks of these jobs that have not ended back by as much as the clock. Call it with the jobs
    locked."""
    execute(_ASSIGNMENTS, {"by": by, "jobs": jobs})
