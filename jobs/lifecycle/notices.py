"""Notices for the owners of running jobs, in the place of a reason and as events."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpusched.lib.bus import events
from gpusched.lib.db.sql import as_json, columns, query
from gpusched.protocol.reasons import Notice
from jobs.events.record import insert_sql

_NOTICE = insert_sql(
    "kind", "moved", at="%s", actor="'scheduler'", data="data || jsonb_build_object('reason', %s::text)"
)
_SET = f"""
    WITH notices AS (
        SELECT * FROM unnest(%s::bigint[], %s::int[], %s::text[], %s::jsonb[]) AS t (job_id, attempt, kind, data)),
    moved AS (
        UPDATE jobs_job j SET reason = %s, evidence = t.data, reason_since = %s
          FROM notices t WHERE j.id = t.job_id AND j.attempt = t.attempt AND j.state = 'running'
        RETURNING j.id, j.attempt, t.kind, t.data)
    {_NOTICE} RETURNING job_id
"""


def set_notice(notices: Sequence[tuple[int, int, str, dict[str, Any]]], notice: Notice, at: datetime) -> list[int]:
    """Set a notice, given (job, attempt, kind of event, evidence), on the jobs that still run. Return their ids."""
    ordered = sorted(notices, key=lambda entry: entry[0])
    rows = [(job_id, attempt, kind, as_json(data)) for job_id, attempt, kind, data in ordered]
    params = [*columns(rows, 4), notice, at, at, notice]
    return _publish([row["job_id"] for row in query(_SET, params)] if rows else [])


_CLEARED = insert_sql("%s", "moved", at="%s", actor="'scheduler'")
_CLEAR = f"""
    WITH moved AS (
        UPDATE jobs_job SET reason = '', evidence = '{{}}', reason_since = NULL
         WHERE id = ANY(%s) AND state = 'running' AND reason = %s RETURNING id, attempt)
    {_CLEARED} RETURNING job_id
"""


def clear_notice(job_ids: Sequence[int], notice: Notice, kind: str, at: datetime) -> list[int]:
    """Clear a notice, and record an event of this kind where it was set. Return the ids of those jobs."""
    rows = query(_CLEAR, [sorted(job_ids), notice, at, kind])
    return _publish([row["job_id"] for row in rows])


def _publish(job_ids: list[int]) -> list[int]:
    events.changed("jobs", job_ids)
    return job_ids
