"""The jobs that match the filters of a list: a page of them, and their number."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import cursor_number, encode_cursor, read_moment, whole_number
from gpusched.lib.db.sql import query, rows
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState
from jobs.listing import representation

FILTERS = {
    "submitted_after": "a moment, or a day (from its beginning): submitted then or later",
    "submitted_before": "a moment, or a day: submitted before",
    "ended_after": "ended then or later; where thousands did, a page may have fewer items, or none, and a next_cursor",
    "ended_before": "ended before; as ended_after",
}


# Ids ascend with the time of the submit, except in transactions that last longer than others: at most by this much.
MARGIN = timedelta(minutes=10)


Condition = tuple[list[str], list[Any]]
_moment = partial(read_moment, spare=2 * MARGIN)


def _submitted_condition(filters: Mapping[str, str], *, of_array: bool) -> Condition:
    """Return the condition on `submitted_at`, with bounds of ids that let PostgreSQL skip the rest. Elements have the
    `submitted_at` of their array, but their ids come from their placement, so they get no bounds."""
    after_moment, before_moment = (
        _moment(filters, "submitted_after"),
        _moment(filters, "submitted_before"),
    )
    # A job that ended before a moment was submitted before it.
    bounds = (before_moment, _moment(filters, "ended_before"))
    latest = min([moment for moment in bounds if moment is not None], default=None)
    parts, params = list[str](), list[Any]()
    for sql, at in (("j.submitted_at >= %s", after_moment), ("j.submitted_at < %s", before_moment)):
        if at is not None:
            parts.append(sql)
            params.append(at)
    if after_moment is not None and not of_array:
        parts.append("j.id >= %s")
        params.append(_first_id(after_moment - MARGIN))
    if latest is not None and not of_array:
        parts.append("j.id < %s")
        params.append(_first_id(latest + MARGIN))
    return parts, params


def _ended_condition(filters: Mapping[str, str]) -> Condition:
    """Return the condition on `ended_at`."""
    parts, params = list[str](), list[Any]()
    for sql, name in (("j.ended_at >= %s", "ended_after"), ("j.ended_at < %s", "ended_before")):
        if (moment := _moment(filters, name)) is not None:
            parts.append(sql)
            params.append(moment)
    return parts, params


def ended_ids(filters: Mapping[str, str], maximum: int) -> list[int] | None:
    """Return the jobs that ended in the span, arrays but no elements. None without a span, or if more than
    `maximum` did: then a scan of the list is quicker."""
    parts, params = _ended_condition(filters)
    if not parts:
        return None
    # The order of the index; otherwise PostgreSQL might scan from the oldest job on.
    condition = f"{' AND '.join(parts)} AND j.array_id IS NULL"
    sql = f"SELECT j.id FROM jobs_job j WHERE {condition} ORDER BY j.ended_at LIMIT %s"
    matches = rows(sql, [*params, maximum + 1])
    return None if len(matches) > maximum else [job_id for (job_id,) in matches]


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
    """Return the first id of the jobs that were submitted at the moment or later, by binary search: about 20 reads."""
    [row] = query(_HALVES, {"moment": moment})
    return int(row["low"])


_STATE_WORDS = {"waiting": sorted(WAITING), "live": sorted(LIVE), "final": sorted(FINAL)}
# Counts stop there.
MAX_COUNTED = 10_000
# With more arrays their elements are not counted.
MAX_ARRAYS = 100


def list_jobs(
    filters: dict[str, str], visible: list[int] | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of the matching jobs, newest first, and the cursor of the next page; 400 for a bad filter."""
    condition, params, unindexed = _indexed_condition(filters, visible)
    last = None
    if unindexed[0]:
        condition, params, last = _among_newest(condition, params, unindexed)
    items, is_full = representation.newest_page(condition, params, limit)
    last = items[-1]["id"] if is_full else last
    return items, None if last is None else encode_cursor("jobs", last)


def count_jobs(filters: dict[str, str], visible: list[int] | None) -> dict[str, Any]:
    """Count the matching jobs, an array once, as JobCount; 400 for a bad filter."""
    condition, params, unindexed = _indexed_condition(filters, visible)
    parts, more = unindexed
    is_found = " AND ".join(parts) or "true"
    sql = f"""
        SELECT count(*) AS looked_at, count(*) FILTER (WHERE is_found) AS jobs,
               array_agg(id) FILTER (WHERE is_found AND array_count IS NOT NULL) AS arrays
          FROM (SELECT j.id, j.array_count, {is_found} AS is_found
                  FROM jobs_job j WHERE {condition} LIMIT %s) j"""
    [row] = query(sql, [*more, *params, MAX_COUNTED + 1])
    jobs, arrays, is_more = row["jobs"], row["arrays"] or [], row["looked_at"] > MAX_COUNTED
    is_known = not is_more and len(arrays) <= MAX_ARRAYS
    return {
        "jobs": min(jobs, MAX_COUNTED),
        "is_more": is_more,
        "with_elements": jobs - len(arrays) + _count_elements(arrays, filters) if is_known else None,
    }


def _count_elements(arrays: list[int], filters: dict[str, str]) -> int:
    """Count the elements of these arrays in the requested states."""
    if not arrays:
        return 0
    states = states_of(filters["state"]) if "state" in filters else list(JobState)
    by_state = [job["array"]["by_state"] for job in representation.select("j.id = ANY(%s)", [arrays])]
    return sum(counts.get(state, 0) for counts in by_state for state in states)


def _indexed_condition(filters: dict[str, str], visible: list[int] | None) -> tuple[str, list[Any], Condition]:
    """Return the condition that indexes serve, and the one that they do not."""
    condition, params = _condition(filters, visible)
    ids = None if "array" in filters else ended_ids(filters, MAX_AT_ONCE)
    if ids is not None:
        condition, params = f"{condition} AND j.id = ANY(%s)", [*params, sorted(ids)]
    return condition, params, _unindexed_condition(filters, are_known=ids is not None)


# Looked up as ids first: only for a constant id does PostgreSQL estimate the rows well and choose the right index.
_NAMED = {
    "tenant": ("j.tenant_id = %s", "SELECT id FROM tenants_all WHERE name = %s"),
    "user": ("j.user_id = %s", "SELECT id FROM tenants_people WHERE username = %s"),
}


def _condition(filters: dict[str, str], visible: list[int] | None) -> tuple[str, list[Any]]:
    parts, params = ["j.array_id IS NULL"], list[Any]()
    if "array" in filters:
        parts, params = ["j.array_id = %s"], [whole_number(filters, "array", 0, 1, 2**62)]
    if visible is not None:
        # An index yields the newest jobs of one tenant, but not of several.
        parts.append("j.tenant_id = %s" if len(visible) == 1 else "j.tenant_id = ANY(%s)")
        params.append(visible[0] if len(visible) == 1 else visible)
    for name, (sql, its_id) in _NAMED.items():
        if name in filters:
            parts.append(sql)
            params.append(next((row["id"] for row in query(its_id, [filters[name]])), None))
    if "state" in filters:
        # One condition per partial index, so that PostgreSQL recognises that it may use it.
        states = set(states_of(filters["state"]))
        kinds = [sorted(kind) for kind in (states & FINAL, states - FINAL) if kind]
        parts.append(f"({' OR '.join(['j.state = ANY(%s)'] * len(kinds))})")
        params += kinds
    more, moments = _submitted_condition(filters, of_array="array" in filters)
    parts += more
    params += moments
    if (last := cursor_number(filters, "jobs")) is not None:
        parts.append("j.id < %s")
        params.append(last)
    return " AND ".join(parts), params


# No index serves parts of names, or the jobs of a span by their ids. A page searches this many jobs, and its cursor
# continues after them.
MAX_SEARCHED = 5_000
# … but if at most this many jobs ended in the span, an index yields them all.
MAX_AT_ONCE = 2_000


def _unindexed_condition(filters: dict[str, str], *, are_known: bool) -> Condition:
    """Return the condition that no index serves. `are_known`: the ids of those that ended in the span are known."""
    parts, params = ([], []) if are_known else _ended_condition(filters)
    if "name" in filters:
        parts.append("strpos(lower(j.name), lower(%s)) > 0")
        params.append(filters["name"])
    return parts, params


def _among_newest(condition: str, params: list[Any], unindexed: Condition) -> tuple[str, list[Any], int | None]:
    """Return the full condition, limited to the newest jobs that match the indexed part, and the last id of those if
    more follow."""
    sql = f"SELECT j.id FROM jobs_job j WHERE {condition} ORDER BY j.id DESC OFFSET %s LIMIT 1"
    beyond = query(sql, [*params, MAX_SEARCHED - 1])
    last = beyond[0]["id"] if beyond else None
    parts, more = unindexed
    return " AND ".join([condition, *parts, "j.id >= %s"]), [*params, *more, last or 0], last


def states_of(text: str) -> list[str]:
    states: list[str] = []
    for word in text.split(","):
        if word not in list(JobState) and word not in _STATE_WORDS:
            accepted = ", ".join([*JobState, *_STATE_WORDS])
            raise invalid([FieldError("state", "unknown_value", f"there is no state '{word[:50]}'; use {accepted}")])
        states += _STATE_WORDS.get(word, [word])
    return states
