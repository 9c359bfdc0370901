"""Facts of running attempts that agents report: how ranks ended, and when work was last saved."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpusched.lib.db.sql import as_json, columns, execute


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
