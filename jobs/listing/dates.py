"""Filters of the list of jobs by date: when they were submitted, and when they ended."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpusched.lib.api.rest import parse_moment as moment
from gpusched.lib.db.sql import query, rows

FILTERS = {
    "submitted_after": "a moment, or a day (from its beginning): submitted then or later",
    "submitted_before": "a moment, or a day: submitted before",
    "ended_after": "ended then or later; where thousands did, a page may have fewer items, or none, and a next_cursor",
    "ended_before": "ended before; as ended_after",
}
# Ids are given out in the order of submits, but for transactions that lasted longer than others, at most by so much.
MARGIN = timedelta(minutes=10)
Condition = tuple[list[str], list[Any]]


def submitted(given: Mapping[str, str], *, of_array: bool) -> Condition:
    """The condition on when they were submitted, with bounds of ids so that only those need be looked at. Elements of
    an array were submitted with it, and have their ids since they were placed."""
    after, before = _moment(given, "submitted_after"), _moment(given, "submitted_before")
    # What ended before a moment was submitted before.
    latest = min([one for one in (before, _moment(given, "ended_before")) if one is not None], default=None)
    parts, params = list[str](), list[Any]()
    for sql, at in (("j.submitted_at >= %s", after), ("j.submitted_at < %s", before)):
        if at is not None:
            parts.append(sql)
            params.append(at)
    if after is not None and not of_array:
        parts.append("j.id >= %s")
        params.append(_first_id(after - MARGIN))
    if latest is not None and not of_array:
        parts.append("j.id < %s")
        params.append(_first_id(latest + MARGIN))
    return parts, params


def ended(given: Mapping[str, str]) -> Condition:
    """The condition on when they ended."""
    parts, params = list[str](), list[Any]()
    for sql, name in (("j.ended_at >= %s", "ended_after"), ("j.ended_at < %s", "ended_before")):
        if (moment := _moment(given, name)) is not None:
            parts.append(sql)
            params.append(moment)
    return parts, params


def those_ended(given: Mapping[str, str], most: int) -> list[int] | None:
    """The jobs that ended in the span, arrays and no elements, in any order; None without one, or if more than `most`
    did: then it is quicker to look at one after the other."""
    parts, params = ended(given)
    if not parts:
        return None
    # In the order of the index, or PostgreSQL might look for them from the oldest job on.
    where = f"{' AND '.join(parts)} AND j.array_id IS NULL"
    sql = f"SELECT j.id FROM jobs_job j WHERE {where} ORDER BY j.ended_at LIMIT %s"
    found = rows(sql, [*params, most + 1])
    return None if len(found) > most else [job_id for (job_id,) in found]


def _moment(given: Mapping[str, str], name: str) -> datetime | None:
    return moment(name, given[name], spare=2 * MARGIN) if name in given else None


_HALVES = """
    WITH RECURSIVE halves (low, high) AS (
        SELECT coalesce(min(id), 0), coalesce(max(id), 0) + 1 FROM jobs_job
         UNION ALL
        SELECT CASE WHEN f.submitted_at < %(moment)s THEN f.id + 1 ELSE h.low END,
               CASE WHEN f.submitted_at < %(moment)s THEN h.high ELSE (h.low + h.high) / 2 END
          FROM halves h LEFT JOIN LATERAL (
                   SELECT id, submitted_at FROM jobs_job
                    WHERE id >= (h.low + h.high) / 2 AND array_id IS NULL ORDER BY id LIMIT 1) f ON true
         WHERE h.low < h.high)
    SELECT low FROM halves WHERE low >= high
"""


def _first_id(moment: datetime) -> int:
    """From this id on jobs were submitted at the moment or later: found by halves, in some twenty looks at one job."""
    [row] = query(_HALVES, {"moment": moment})
    return int(row["low"])
