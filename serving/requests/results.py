"""Record the outcome of requests, exactly once each: the result of their latest attempt, and its cost."""

from collections.abc import Sequence
from typing import NamedTuple

from gpusched.lib.db.sql import columns, prepared
from serving import counts

# A result and its cost are one statement: neither exists without the other.
_RECORD = """
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
        RETURNING r.id, r.endpoint_id, r.user_id, r.cost, r.state, r.ended_at - r.queued_at AS lasted),
    used AS (
        INSERT INTO serving_use (endpoint_id, user_id, hour, requests, cost)
        SELECT endpoint_id, user_id, date_trunc('hour', now(), 'UTC'), count(*), sum(cost)
          FROM ended WHERE state = 'completed' GROUP BY endpoint_id, user_id ORDER BY endpoint_id, user_id
        ON CONFLICT (endpoint_id, user_id, hour)
        DO UPDATE SET requests = serving_use.requests + excluded.requests, cost = serving_use.cost + excluded.cost)
    SELECT id, endpoint_id, state, date_part('epoch', lasted) AS seconds FROM ended
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
    """Record these outcomes. Return the ids of those that were still running this attempt."""
    if not outcomes:
        return []
    names = ("ids", "attempts", "results", "types", "codes", "errors", "files", "sizes")
    values = dict(zip(names, columns(outcomes, len(names)), strict=True))
    values["results"] = [outcome.result for outcome in outcomes]
    values["sizes"] = [_size(outcome) for outcome in outcomes]
    ended = prepared(_RECORD, values)
    for row in ended:
        counts.count_end(row["endpoint_id"], row["state"], row["seconds"])
    return [row["id"] for row in ended]


def _size(outcome: Outcome) -> int | None:
    return len(outcome.result) if outcome.result is not None else outcome.result_bytes
