"""List the elements of an array in order, whether they are jobs yet or not."""

from collections.abc import Collection
from itertools import islice
from typing import Any

from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.arrays import from_multirange, numbers
from gpusched.protocol.states import JobState
from jobs.listing import representation

_UNPLACED = """
    SELECT a.state = 'held' AS is_held, (a.array_waiting * c.chosen)::text AS waiting,
           (a.array_cancelled * c.chosen)::text AS cancelled
      FROM jobs_job a, (SELECT %s::int4multirange AS chosen) c WHERE a.id = %s
"""
_JOBS = """
    SELECT j.id, j.array_index, j.state, j.attempt, j.reason, j.evidence, j.reason_since, j.stop_reason,
           j.stop_evidence, j.exit_code, j.signal, j.max_runtime_seconds, j.started_at, j.ended_at, a.placement
      FROM jobs_job j LEFT JOIN jobs_attempt a ON a.job_id = j.id AND a.number = j.attempt
     WHERE j.array_id = %s AND j.array_index <@ %s::int4multirange AND j.state = ANY(%s)
     ORDER BY j.array_index LIMIT %s
"""


def list_elements(array_id: int, chosen: str, states: Collection[str], limit: int) -> list[dict[str, Any]]:
    """Return the first `limit` of the `chosen` elements (PostgreSQL's text of a multirange) in one of `states`."""
    [row] = query(_UNPLACED, [chosen, array_id])
    waits_as = JobState.HELD if row["is_held"] else JobState.PENDING
    elements = [_element(job) for job in query(_JOBS, [array_id, chosen, list(states), limit])]
    for state, text in ((waits_as, row["waiting"]), (JobState.CANCELLED, row["cancelled"])):
        if state in states:
            elements += [_unplaced_element(number, state) for number in islice(numbers(from_multirange(text)), limit)]
    return sorted(elements, key=_index)[:limit]


def _element(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "index": job["array_index"],
        "state": job["state"],
        "job_id": job["id"],
        "reason": representation.reason(job),
        "attempt": job["attempt"],
        "exit_code": job["exit_code"],
        "signal": job["signal"],
        "nodes": sorted({rank["node"] for rank in job["placement"] or []}),
        "started_at": rfc3339(job["started_at"]),
        "ended_at": rfc3339(job["ended_at"]),
    }


def _unplaced_element(number: int, state: str) -> dict[str, Any]:
    blank = dict.fromkeys(("job_id", "reason", "exit_code", "signal", "started_at", "ended_at"))
    return {"index": number, "state": str(state), **blank, "attempt": 0, "nodes": []}


def _index(element: dict[str, Any]) -> int:
    return int(element["index"])
