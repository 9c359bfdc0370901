"""Record the outcome of requests, exactly once each: the result of their latest attempt, and its cost."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpusched.lib.db.sql import columns, prepared
from serving import counts
from serving.requests import recent_ends
from serving.requests.representation import COLUMNS, NAMES

# A result and its cost are one statement: neither exists without the other.
_RECORD = f"""
    WITH given AS (
        SELECT * FROM unnest(%(ids)s::bigint[], %(attempts)s::int[], %(results)s::bytea[], %(types)s::text[],
                             %(codes)s::text[], %(errors)s::text[], %(files)s::text[], %(sizes)s::bigint[])
                       AS g (id, attempt, result, type, code, error, file, bytes)),
    locked AS (
        SELECT r.id FROM serving_inferencerequest r JOIN given g ON g.id = r.id AND g.attempt = r.attempt
         WHERE r.state = 'running' ORDER BY r.id FOR UPDATE OF r),
    ended AS (
        UPDATE serving_inferencerequest r
           SET state = CASE WHEN g.code = '' THEN 'completed' ELSE 'failed' END, result = g.result,
               result_type = g.type, result_file = g.file, result_bytes = g.bytes,
               error_code = g.code, error = left(g.error, 2000), ended_at = clock_timestamp(),
               dispatcher = NULL
          FROM given g, locked l WHERE r.id = g.id AND l.id = r.id
        RETURNING r.id, r.endpoint_id, r.user_id, r.cost, r.state, r.attempt, r.result_type, r.error_code, r.error,
                  r.batch_size, r.flush_reason, r.payload_bytes, r.result_bytes, r.replica_job_id, r.queued_at,
                  r.started_at, r.ended_at),
    used AS (
        INSERT INTO serving_use (endpoint_id, user_id, hour, requests, cost)
        SELECT endpoint_id, user_id, date_trunc('hour', now(), 'UTC'), count(*), sum(cost)
          FROM ended WHERE state = 'completed' GROUP BY endpoint_id, user_id ORDER BY endpoint_id, user_id
        ON CONFLICT (endpoint_id, user_id, hour)
        DO UPDATE SET requests = serving_use.requests + excluded.requests, cost = serving_use.cost + excluded.cost)
    SELECT {COLUMNS}, r.endpoint_id FROM ended r {NAMES}
"""


class Outcome(NamedTuple):
    """The end of an attempt. `error_code` is empty for a completed request. `result_file`: where the result is instead
    (serving/payloads.py), and `result_bytes` its size."""

    id: int
    attempt: int
    result: bytes | None = None
    result_type: str = ""
    error_code: str = ""
    error: str = ""
    result_file: str = ""
    result_bytes: int | None = None


def record(outcomes: Sequence[Outcome]) -> list[int]:
    """Record these outcomes, for clients that wait for them, too. Return the ids of those that were still running this
    attempt."""
    if not outcomes:
        return []
    names = ("ids", "attempts", "results", "types", "codes", "errors", "files", "sizes")
    values = dict(zip(names, columns(outcomes, len(names)), strict=True))
    values["results"] = [outcome.result for outcome in outcomes]
    values["sizes"] = [_size(outcome) for outcome in outcomes]
    results = {(outcome.id, outcome.attempt): outcome.result for outcome in outcomes}
    ended = [_ended(row, results[row["id"], row["attempt"]]) for row in prepared(_RECORD, values)]
    recent_ends.keep(ended)
    return [row["id"] for row in ended]


def _ended(row: dict[str, Any], result: bytes | None) -> dict[str, Any]:
    """Count the end of a request, and return its row as `representation.represented` takes it."""
    counts.count_end(row.pop("endpoint_id"), row["state"], (row["ended_at"] - row["queued_at"]).total_seconds())
    return {**row, "result": result}


def _size(outcome: Outcome) -> int | None:
    return len(outcome.result) if outcome.result is not None else outcome.result_bytes
