"""Filters of the list of jobs by date: when they were submitted, and when they ended."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpusched.lib.problems import invalid
from gpusched.lib.sql import query
from gpusched.lib.times import parsed
from gpusched.protocol.jobs import FieldError

FILTERS = {
    "submitted_after": "a moment, or a day (from its beginning): submitted then or later",
    "submitted_before": "a moment, or a day: submitted before",
    "ended_after": "ended then or later; a page may then have fewer items, or none, and a next_cursor",
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
    for sql, moment in (("j.submitted_at >= %s", after), ("j.submitted_at < %s", before)):
        if moment is not None:
            parts.append(sql)
            params.append(moment)
    if after is not None and not of_array:
        parts.append("j.id >= %s")
        params.append(_first_id(after - MARGIN))
    if latest is not None and not of_array:
        parts.append("j.id < %s")
        params.append(_first_id(latest + MARGIN))
    return parts, params


def ended(given: Mapping[str, str]) -> Condition:
    """The condition on when they ended, which no index knows."""
    parts, params = list[str](), list[Any]()
    for sql, name in (("j.ended_at >= %s", "ended_after"), ("j.ended_at < %s", "ended_before")):
        if (moment := _moment(given, name)) is not None:
            parts.append(sql)
            params.append(moment)
    return parts, params


def _moment(given: Mapping[str, str], name: str) -> datetime | None:
    if name not in given:
        return None
    try:
        moment = parsed(given[name])
        _ = (moment - 2 * MARGIN, moment + 2 * MARGIN)  # not at an end of time
    except (ValueError, OverflowError) as error:
        message = "must be a time like 2030-01-31T08:00:00Z, or a day like 2030-01-31"
        raise invalid([FieldError(name, "wrong_type", message)]) from error
    return moment


def _first_id(moment: datetime) -> int:
    """From this id on jobs were submitted at the moment or later: found by halves, in some twenty looks at one job."""
    [ends] = query("SELECT coalesce(min(id), 0) AS low, coalesce(max(id), 0) + 1 AS high FROM jobs_job")
    low, high = ends["low"], ends["high"]
    while low < high:
        middle = (low + high) // 2
        found = query(
            "SELECT id, submitted_at FROM jobs_job WHERE id >= %s AND array_id IS NULL ORDER BY id LIMIT 1", [middle]
        )
        if not found or found[0]["submitted_at"] >= moment:
            high = middle
        else:
            low = found[0]["id"] + 1
    return int(low)
