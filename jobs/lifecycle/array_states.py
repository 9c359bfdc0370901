"""The states of arrays, and their elements that are no jobs yet. The caller has locked the array."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpusched.lib.db.sql import as_json, columns, execute, query
from gpusched.protocol.reasons import EndReason, Pending
from jobs.events.record import insert_sql
from jobs.lifecycle.states import move_sql

UNFINISHED = "('pending', 'held', 'scheduled', 'running', 'stopping')"

# --- elements start and end -------------------------------------------------------------------------------------------

_START = move_sql(
    "'running'",
    "array_waiting = j.array_waiting - t.taken::int4multirange",
    "j.id = t.id",
    source="unnest(%s::bigint[], %s::text[]) AS t (id, taken)",
    returning="isempty(j.array_waiting) AS is_empty",
)
_END_ARRAYS = move_sql(
    "e.state",
    """reason = e.reason, evidence = e.evidence, reason_since = now(), stop_reason = '', stop_evidence = '{}',
       ended_at = clock_timestamp()""",
    "j.id = e.id",
    source="unnest(%s::bigint[], %s::text[], %s::text[], %s::jsonb[]) AS e (id, state, reason, evidence)",
    returning="j.id, j.reason, j.evidence",
)
_ENDED = insert_sql("'ended'", "moved", attempt="0", data="jsonb_build_object('reason', reason) || evidence")
_END = f"WITH moved AS ({_END_ARRAYS}) {_ENDED}"


def start(numbers: Mapping[int, str]) -> bool:
    """Move arrays to running when elements become jobs: {array: its new jobs' numbers as PostgreSQL's multirange}.
    Return whether elements remain."""
    rows = query(_START, columns(list(numbers.items()), 2))
    return not all(row["is_empty"] for row in rows)


def end(ended: Sequence[tuple[int, str, str, str]]) -> None:
    """Move arrays to a final state: (array, state, reason, evidence as JSON)."""
    execute(_END, columns(ended, 4))


def clear_reason(array_ids: Iterable[int]) -> None:
    """Clear the pending reason of running arrays without waiting elements."""
    execute(
        "UPDATE jobs_job SET reason = '', evidence = '{}', reason_since = NULL"
        " WHERE id = ANY(%s) AND state = 'running' AND reason <> '' AND isempty(array_waiting)",
        [sorted(array_ids)],
    )


# --- stop, hold, release, reopen --------------------------------------------------------------------------------------

_STOP = move_sql(
    "'stopping'",
    "stop_reason = %s, stop_evidence = %s::jsonb, reason = '', evidence = '{}', reason_since = now()",
    "id = %s AND state <> 'stopping' AND open_dependencies = 0",
)
_HOLD = move_sql(
    "'held'",
    "reason = %s, evidence = '{}', reason_since = now()",
    "id = %s",
    returning="jobs_numbers(array_waiting) AS n",
)
# An array that is open is running once an element was ever placed.
_OPEN = "CASE WHEN EXISTS (SELECT 1 FROM jobs_job e WHERE e.array_id = j.id) THEN 'running' ELSE 'pending' END"
_WAITING_REASON = f"reason = '{Pending.SCHEDULER_BEHIND}', evidence = '{{}}', reason_since = now()"
_RELEASE = move_sql(_OPEN, _WAITING_REASON, "id = %s AND state = 'held' AND reason = ANY(%s)")
_REOPEN = move_sql(
    _OPEN,
    f"""array_waiting = array_waiting + array_cancelled * %s::int4multirange,
        array_cancelled = array_cancelled - %s::int4multirange, ended_at = NULL, {_WAITING_REASON}""",
    "id = %s",
)


def stop(array_id: int, reason: EndReason, evidence: dict[str, Any]) -> bool:
    """Move an array to stopping. Return False if it is stopping already, or waits for other jobs."""
    return bool(execute(_STOP, [reason, as_json(evidence), array_id]))


def hold(array_id: int, reason: Pending) -> int:
    """Move an array to held. Return how many elements wait that are no jobs yet."""
    [row] = query(_HOLD, [reason, array_id])
    return int(row["n"])


def release(array_id: int, reasons: Sequence[Pending]) -> bool:
    """Open an array that is held for one of `reasons`. Return whether it was."""
    return bool(execute(_RELEASE, [array_id, list(reasons)]))


def reopen(array_id: int, chosen: str) -> None:
    """Open an array again, and let those of its `chosen` elements (PostgreSQL's multirange) wait that were cancelled
    before they became jobs."""
    execute(_REOPEN, [chosen, chosen, array_id])


def cancel_waiting(array_id: int, chosen: str) -> int:
    """Cancel those of the `chosen` elements that are no jobs yet. Return how many."""
    [row] = query(
        """UPDATE jobs_job a SET array_waiting = o.array_waiting - o.chosen,
                  array_cancelled = o.array_cancelled + o.array_waiting * o.chosen
             FROM (SELECT id, array_waiting, array_cancelled, %s::int4multirange AS chosen FROM jobs_job
                    WHERE id = %s) o
            WHERE a.id = o.id RETURNING jobs_numbers(o.array_waiting * o.chosen) AS n""",
        [chosen, array_id],
    )
    return int(row["n"])
