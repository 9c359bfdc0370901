"""Facts of running attempts that agents report: how ranks ended, and when work was last saved."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from gpusched.lib.db.sql import as_json, columns, execute, query
from jobs.lifecycle import states


def record_outcomes(rows: Sequence[tuple[int, int, int, dict[str, Any]]]) -> None:
    """Store how ranks ended, (job, attempt, rank, outcome), with their attempts."""
    merged: dict[tuple[int, int], dict[str, Any]] = {}
    for job_id, attempt, rank, outcome in rows:
        merged.setdefault((job_id, attempt), {})[str(rank)] = outcome
    execute(
        "UPDATE jobs_attempt a SET outcomes = a.outcomes || o.outcome"
        "  FROM unnest(%s::bigint[], %s::int[], %s::jsonb[]) AS o (job_id, number, outcome)"
        " WHERE a.job_id = o.job_id AND a.number = o.number",
        columns([(job, number, as_json(outcomes)) for (job, number), outcomes in merged.items()], 3),
    )


# The latest counts, never earlier than the start: the time of a file can be anything.
_SAVED = """
    UPDATE jobs_attempt a SET saved_at = t.at
      FROM (SELECT id, max(at) AS at FROM unnest(%s::bigint[], %s::timestamptz[]) AS u (id, at) GROUP BY id) t
     WHERE a.id = t.id AND a.ended_at IS NULL AND t.at >= a.started_at AND (a.saved_at IS NULL OR a.saved_at < t.at)
"""


def record_saves(saves: Sequence[tuple[int, datetime]]) -> int:
    """Store when attempts, by id, last saved their work. Return how many of them had not saved since."""
    return execute(_SAVED, columns(saves, 2)) if saves else 0


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
