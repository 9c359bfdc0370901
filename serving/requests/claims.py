"""Claim waiting requests for batches, and return them to the queue when their dispatcher or replica fails.

PostgreSQL is the queue. A claim raises `attempt`, the fencing number, so that a request that was returned to the queue
ignores the result of an earlier attempt."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gpusched.lib.db.sql import columns, execute, prepared
from serving.former import Batch, Waiting

# The first requests of each user of an endpoint: a user with thousands must not hide the others.
_HEADS = """
    WITH RECURSIVE users AS (
        SELECT e.id AS endpoint_id, (SELECT min(user_id) FROM serving_inferencerequest
                                      WHERE endpoint_id = e.id AND state = 'queued') AS user_id
          FROM unnest(%(endpoints)s::bigint[]) AS e (id)
         UNION ALL
        SELECT u.endpoint_id, (SELECT min(user_id) FROM serving_inferencerequest
                                WHERE endpoint_id = u.endpoint_id AND state = 'queued' AND user_id > u.user_id)
          FROM users u WHERE u.user_id IS NOT NULL)
    SELECT u.endpoint_id, r.id, r.user_id, r.cost, r.runs_alone, r.payload_bytes, e.memory_per_request_mb,
           date_part('epoch', clock_timestamp() - r.queued_at) AS age
      FROM users u JOIN serving_endpoint e ON e.id = u.endpoint_id
      CROSS JOIN LATERAL (
           SELECT id, user_id, cost, runs_alone, payload_bytes, queued_at FROM serving_inferencerequest
            WHERE endpoint_id = u.endpoint_id AND user_id = u.user_id AND state = 'queued'
             ORDER BY id LIMIT %(heads)s) r
     WHERE u.user_id IS NOT NULL ORDER BY r.id
"""
# Two dispatchers may choose the same requests: the second one skips them.
_CLAIM = """
    WITH chosen AS (
        SELECT c.id, c.replica, c.batch, c.size, c.reason
          FROM unnest(%(ids)s::bigint[], %(replicas)s::bigint[], %(batches)s::int[], %(sizes)s::int[],
                      %(reasons)s::text[]) AS c (id, replica, batch, size, reason)
          JOIN serving_inferencerequest r ON r.id = c.id AND r.state = 'queued'
         ORDER BY c.id FOR UPDATE OF r SKIP LOCKED)
    UPDATE serving_inferencerequest r
       SET state = 'running', attempt = r.attempt + 1, started_at = clock_timestamp(), replica_job_id = c.replica,
           dispatcher = %(dispatcher)s, batch_size = c.size, flush_reason = c.reason
      FROM chosen c WHERE r.id = c.id
    RETURNING c.batch, r.id, r.attempt, r.payload, r.payload_type, r.cost, r.payload_file, r.runs_alone
"""
_RETURN = """
    WITH locked AS (
        SELECT id FROM serving_inferencerequest
         WHERE state = 'running' AND {of} ORDER BY id FOR UPDATE SKIP LOCKED)
    UPDATE serving_inferencerequest r
       SET state = 'queued', dispatcher = NULL, replica_job_id = NULL, started_at = NULL, batch_size = NULL,
           returned_at = clock_timestamp(), flush_reason = '', runs_alone = r.runs_alone OR %(alone)s
      FROM locked l WHERE r.id = l.id RETURNING r.endpoint_id
"""
_RETURN_ATTEMPTS = _RETURN.format(
    of="(id, attempt) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(attempts)s::int[])) AND dispatcher = %(dispatcher)s"
)
_RETURN_UNKNOWN = _RETURN.format(
    of="dispatcher = %(dispatcher)s AND endpoint_id = ANY(%(endpoints)s::bigint[])"
    " AND (id, attempt) NOT IN (SELECT * FROM unnest(%(ids)s::bigint[], %(attempts)s::int[]))"
)
_RETURN_SILENT = _RETURN.format(
    of="dispatcher IN (SELECT id FROM serving_dispatcher WHERE seen_at < clock_timestamp() - interval '{seconds} s')"
)


class Claimed(NamedTuple):
    """A request in progress. (id, attempt) names it in its result. `payload_file`: where the payload is instead.
    `runs_alone`: it has been in a batch that failed or lost its replica."""

    id: int
    attempt: int
    payload: bytes
    payload_type: str
    cost: float
    payload_file: str = ""
    runs_alone: bool = False


def waiting(endpoints: Collection[int], heads: int, now: float) -> dict[int, list[Waiting]]:
    """Return at most `heads` waiting requests of each user of these endpoints. `now`: the caller's clock, in
    seconds."""
    result: dict[int, list[Waiting]] = defaultdict(list)
    for row in prepared(_HEADS, {"endpoints": list(endpoints), "heads": heads}):
        request = Waiting(
            row["id"],
            row["user_id"],
            row["cost"],
            now - row["age"],
            row["memory_per_request_mb"],
            row["runs_alone"],
            row["payload_bytes"],
        )
        result[row["endpoint_id"]].append(request)
    return result


def claim(dispatcher: int, batches: Sequence[Batch]) -> list[list[Claimed]]:
    """Claim the requests of these batches, and return those of each that no other dispatcher had claimed."""
    chosen = [
        (request, batch.replica, number, len(batch.requests), batch.reason.value)
        for number, batch in enumerate(batches)
        for request in batch.requests
    ]
    names = ("ids", "replicas", "batches", "sizes", "reasons")
    values = dict(zip(names, columns(chosen, len(names)), strict=True))
    claimed: list[list[Claimed]] = [[] for _ in batches]
    for row in prepared(_CLAIM, {**values, "dispatcher": dispatcher}):
        claimed[row.pop("batch")].append(Claimed(**row))
    return [sorted(requests) for requests in claimed]


def return_to_queue(dispatcher: int, attempts: Mapping[int, int], *, alone: bool) -> None:
    """Return requests in progress ({id: attempt}) to the queue. `alone`: each is retried in a batch of its own, since
    one of them may be at fault."""
    values = {"ids": list(attempts), "attempts": list(attempts.values()), "dispatcher": dispatcher, "alone": alone}
    prepared(_RETURN_ATTEMPTS, values)


def return_unknown(dispatcher: int, endpoints: Collection[int], held: Sequence[tuple[int, int]]) -> None:
    """Return the requests of these endpoints that a dispatcher has in progress without knowing of them: the database
    went away while it answered a commit. `held`: those that it knows of, as (id, attempt)."""
    ids, attempts = columns(held, 2)
    values = {"dispatcher": dispatcher, "endpoints": list(endpoints), "ids": ids, "attempts": attempts, "alone": False}
    prepared(_RETURN_UNKNOWN, values)


def return_of_silent(silent_seconds: float) -> set[int]:
    """Return the requests of web processes that have not renewed their lease. Return the endpoints concerned."""
    rows = prepared(_RETURN_SILENT.format(seconds=float(silent_seconds)), {"alone": False})
    execute("DELETE FROM serving_dispatcher WHERE seen_at < clock_timestamp() - interval '1 day'")
    return {row["endpoint_id"] for row in rows}
