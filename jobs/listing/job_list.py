"""Which jobs meet the filters of a list: a page of them, and how many there are."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import cursor_number, encode_cursor, whole_number
from gpusched.lib.api.rest import parse_moment as moment
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


# Ids are given out in the order of submits, but for transactions that lasted longer than others, at most by so much.
MARGIN = timedelta(minutes=10)


Condition = tuple[list[str], list[Any]]


def _submitted_condition(given: Mapping[str, str], *, of_array: bool) -> Condition:
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


def _ended_condition(given: Mapping[str, str]) -> Condition:
    """The condition on when they ended."""
    parts, params = list[str](), list[Any]()
    for sql, name in (("j.ended_at >= %s", "ended_after"), ("j.ended_at < %s", "ended_before")):
        if (moment := _moment(given, name)) is not None:
            parts.append(sql)
            params.append(moment)
    return parts, params


def ended_ids(given: Mapping[str, str], most: int) -> list[int] | None:
    """The jobs that ended in the span, arrays and no elements, in any order; None without one, or if more than `most`
    did: then it is quicker to look at one after the other."""
    parts, params = _ended_condition(given)
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


_STATE_WORDS = {"waiting": sorted(WAITING), "live": sorted(LIVE), "final": sorted(FINAL)}
# A count goes no further.
MAX_COUNTED = 10_000
# Of more arrays their elements are not counted.
MAX_ARRAYS = 100


def list_jobs(given: dict[str, str], visible: list[int] | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the jobs that meet the filters, newest first, and the cursor of the next page; 400 for a bad filter."""
    where, params, found = _indexed_condition(given, visible)
    last = None
    if found[0]:
        where, params, last = _among_newest(where, params, found)
    items, is_full = representation.newest_page(where, params, limit)
    last = items[-1]["id"] if is_full else last
    return items, None if last is None else encode_cursor("jobs", last)


def count_jobs(given: dict[str, str], visible: list[int] | None) -> dict[str, Any]:
    """How many jobs meet the filters, an array counted once, as JobCount; 400 for a bad filter."""
    where, params, found = _indexed_condition(given, visible)
    parts, more = found
    is_found = " AND ".join(parts) or "true"
    sql = f"""
        SELECT count(*) AS looked_at, count(*) FILTER (WHERE is_found) AS jobs,
               array_agg(id) FILTER (WHERE is_found AND array_count IS NOT NULL) AS arrays
          FROM (SELECT j.id, j.array_count, {is_found} AS is_found
                  FROM jobs_job j WHERE {where} LIMIT %s) j"""
    [row] = query(sql, [*more, *params, MAX_COUNTED + 1])
    jobs, arrays, is_more = row["jobs"], row["arrays"] or [], row["looked_at"] > MAX_COUNTED
    is_known = not is_more and len(arrays) <= MAX_ARRAYS
    return {
        "jobs": min(jobs, MAX_COUNTED),
        "is_more": is_more,
        "with_elements": jobs - len(arrays) + _count_elements(arrays, given) if is_known else None,
    }


def _count_elements(arrays: list[int], given: dict[str, str]) -> int:
    """How many elements of these arrays are in the states asked for."""
    if not arrays:
        return 0
    states = states_of(given["state"]) if "state" in given else list(JobState)
    by_state = [job["array"]["by_state"] for job in representation.select("j.id = ANY(%s)", [arrays])]
    return sum(one.get(state, 0) for one in by_state for state in states)


def _indexed_condition(given: dict[str, str], visible: list[int] | None) -> tuple[str, list[Any], Condition]:
    """The condition for which there are indexes, and what is looked for without."""
    where, params = _condition(given, visible)
    ids = None if "array" in given else ended_ids(given, MAX_AT_ONCE)
    if ids is not None:
        where, params = f"{where} AND j.id = ANY(%s)", [*params, sorted(ids)]
    return where, params, _unindexed_condition(given, are_known=ids is not None)


# By id, and that asked for first: only of a number does PostgreSQL know how many jobs it has, and which index to walk.
_NAMED = {
    "tenant": ("j.tenant_id = %s", "SELECT id FROM tenants_all WHERE name = %s"),
    "user": ("j.user_id = %s", "SELECT id FROM tenants_people WHERE username = %s"),
}


def _condition(given: dict[str, str], visible: list[int] | None) -> tuple[str, list[Any]]:
    parts, params = ["j.array_id IS NULL"], list[Any]()
    if "array" in given:
        parts, params = ["j.array_id = %s"], [whole_number(given, "array", 0, 1, 2**62)]
    if visible is not None:
        # An index gives the newest of one tenant, of several only one after the other.
        parts.append("j.tenant_id = %s" if len(visible) == 1 else "j.tenant_id = ANY(%s)")
        params.append(visible[0] if len(visible) == 1 else visible)
    for name, (sql, its_id) in _NAMED.items():
        if name in given:
            parts.append(sql)
            params.append(next((row["id"] for row in query(its_id, [given[name]])), None))
    if "state" in given:
        # Those of one kind by one index, so that PostgreSQL sees that it may use it.
        states = set(states_of(given["state"]))
        kinds = [sorted(kind) for kind in (states & FINAL, states - FINAL) if kind]
        parts.append(f"({' OR '.join(['j.state = ANY(%s)'] * len(kinds))})")
        params += kinds
    more, moments = _submitted_condition(given, of_array="array" in given)
    parts += more
    params += moments
    if (last := cursor_number(given, "jobs")) is not None:
        parts.append("j.id < %s")
        params.append(last)
    return " AND ".join(parts), params


# No index knows parts of names, nor gives those that ended in a span by their ids. A page looks at so many jobs, and
# where to go on stands in its cursor.
MAX_SEARCHED = 5_000
# … but of a span in which no more than so many ended, all are known by an index.
MAX_AT_ONCE = 2_000


def _unindexed_condition(given: dict[str, str], *, are_known: bool) -> Condition:
    """What is looked for without an index. `are_known`: which ended in the span."""
    parts, params = ([], []) if are_known else _ended_condition(given)
    if "name" in given:
        parts.append("strpos(lower(j.name), lower(%s)) > 0")
        params.append(given["name"])
    return parts, params


def _among_newest(where: str, params: list[Any], found: Condition) -> tuple[str, list[Any], int | None]:
    """The condition with what is looked for, among the newest jobs that meet it so far; and the last of them, if more
    follow."""
    sql = f"SELECT j.id FROM jobs_job j WHERE {where} ORDER BY j.id DESC OFFSET %s LIMIT 1"
    beyond = query(sql, [*params, MAX_SEARCHED - 1])
    last = beyond[0]["id"] if beyond else None
    parts, more = found
    return " AND ".join([where, *parts, "j.id >= %s"]), [*params, *more, last or 0], last


def states_of(text: str) -> list[str]:
    wanted: list[str] = []
    for word in text.split(","):
        if word not in list(JobState) and word not in _STATE_WORDS:
            accepted = ", ".join([*JobState, *_STATE_WORDS])
            raise invalid([FieldError("state", "unknown_value", f"there is no state '{word[:50]}'; use {accepted}")])
        wanted += _STATE_WORDS.get(word, [word])
    return wanted
