"""Places at replicas of the OpenAI API, in the database: first come, first served, at the least loaded replica.

A replica of this protocol batches continuously by itself, so its endpoint's `max_batch` only limits how many requests
it has at once. A queued request keeps the web process of its client in `dispatcher`: without that process it has no
reader, and takes no place."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from django.db import transaction

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import execute, prepared
from serving.replicas.place_lock import lock_places
from serving.upkeep import SILENT_SECONDS

# For this time, a replica that this web process cannot reach gets its requests only if there is no other, and one that
# has failed a request only if the others are full.
AVOID_SECONDS = 5.0
# Since when, by the monotonic clock: {job: time}.
_unreachable: Cache[None, dict[int, float]] = Cache()
_failing: Cache[None, dict[int, float]] = Cache()
# A replica with a dispatcher has answered a probe, and no request has failed at it since. While this web process avoids
# replicas, requests of another one, which may wait for those, are not before its own.
_ASSIGN = f"""
    WITH proven AS MATERIALIZED (
        SELECT job_id, job_id = ANY(%(avoided)s::bigint[]) AS is_avoided
          FROM serving_replica
         WHERE endpoint_id = %(endpoint)s AND warm_at IS NOT NULL AND dispatcher IS NOT NULL
           AND ended_at IS NULL AND NOT is_draining),
    places AS MATERIALIZED (
        SELECT p.job_id, row_number() OVER (
                   ORDER BY p.job_id = ANY(%(failing)s::bigint[]), p.level, p.job_id) AS number
          FROM (SELECT r.job_id, generate_series(count(q.id) + 1, e.max_batch) AS level
                  FROM proven r JOIN serving_endpoint e ON e.id = %(endpoint)s
                  LEFT JOIN serving_inferencerequest q ON q.replica_job_id = r.job_id AND q.state = 'running'
                 WHERE NOT r.is_avoided OR NOT EXISTS (SELECT 1 FROM proven WHERE NOT is_avoided)
                 GROUP BY r.job_id, e.max_batch) p),
    waiting AS MATERIALIZED (
        SELECT r.id, row_number() OVER (ORDER BY r.id) AS number
          FROM serving_inferencerequest r JOIN serving_dispatcher d ON d.id = r.dispatcher
         WHERE r.endpoint_id = %(endpoint)s AND r.state = 'queued'
           AND d.seen_at > clock_timestamp() - interval '{SILENT_SECONDS} s'
           AND (r.dispatcher = %(dispatcher)s OR NOT EXISTS (SELECT 1 FROM proven WHERE is_avoided))
         ORDER BY r.id LIMIT (SELECT count(*) FROM places)),
    chosen AS (
        SELECT r.id, p.job_id
          FROM waiting w JOIN places p USING (number) JOIN serving_inferencerequest r ON r.id = w.id
         WHERE r.id = ANY(%(ids)s::bigint[]) AND r.state = 'queued' FOR UPDATE OF r SKIP LOCKED)
    UPDATE serving_inferencerequest r
       SET state = 'running', attempt = r.attempt + 1, started_at = clock_timestamp(), replica_job_id = c.job_id,
           dispatcher = %(dispatcher)s
      FROM chosen c WHERE r.id = c.id
    RETURNING r.id, r.attempt, c.job_id
"""
_RETURN = """
    UPDATE serving_inferencerequest SET state = 'queued', replica_job_id = NULL, started_at = NULL
     WHERE id = %s AND attempt = %s AND state = 'running'
"""
# The dispatcher of a request is its own web process, that of a replica the one that has proven it.
_RELEASE_OWN = """
    UPDATE serving_replica r SET dispatcher = NULL FROM serving_inferencerequest q
     WHERE r.job_id = %s AND q.id = %s AND q.dispatcher = r.dispatcher
"""
_ENDED = """
    SELECT id, state, error_code, error FROM serving_inferencerequest
     WHERE id = ANY(%s::bigint[]) AND state NOT IN ('queued', 'running')
"""


class Place(NamedTuple):
    """A request at a replica. (request, attempt) names it in its outcome."""

    request: int
    attempt: int
    job_id: int


class EndedRequest(NamedTuple):
    """A request that ended before its response: cancelled, expired or refused."""

    request: int
    state: str
    code: str
    error: str


def assign(dispatcher: int, endpoint_id: int, ids: Sequence[int]) -> list[Place]:
    """Give places to those of these requests that are first in the queue of their endpoint."""
    avoided, failing = (list(_recent(known.last(None, {}))) for known in (_unreachable, _failing))
    values = {
        "dispatcher": dispatcher, "endpoint": endpoint_id, "ids": list(ids), "avoided": avoided, "failing": failing,
    }  # fmt: skip
    with transaction.atomic(savepoint=False):
        lock_places(endpoint_id)
        return sorted(Place(row["id"], row["attempt"], row["job_id"]) for row in prepared(_ASSIGN, values))


def give_back(place: Place, *, is_unreachable: bool = False) -> None:
    """Return a request to the queue because its replica failed. That replica gets no more until it answers a probe,
    unless it `is_unreachable` from this web process only: another one, which has proven it, may have its agent."""
    with transaction.atomic():
        if is_unreachable:
            _remember(_unreachable, place.job_id)
            execute(_RELEASE_OWN, [place.job_id, place.request])
        else:
            release_replica(place.job_id)
        execute(_RETURN, [place.request, place.attempt])


def answered(job_id: int, status: int) -> None:
    """Prefer other replicas to one that is overloaded or fails: it answers fast, so it would have the fewest requests
    and get every next one."""
    if status == 429 or status >= 500:
        _remember(_failing, job_id)


def release_replica(job_id: int) -> None:
    """Give a replica no more requests until it answers a probe. It may answer that and hang again at a request."""
    _remember(_failing, job_id)
    execute("UPDATE serving_replica SET dispatcher = NULL WHERE job_id = %s", [job_id])


def ended(ids: Sequence[int]) -> list[EndedRequest]:
    """Return those of these requests that have ended."""
    rows = prepared(_ENDED, [list(ids)])
    return [EndedRequest(row["id"], row["state"], row["error_code"], row["error"]) for row in rows]


def _remember(cache: Cache[None, dict[int, float]], job_id: int) -> None:
    cache.update(None, lambda known: {**_recent(known or {}), job_id: time.monotonic()})


def _recent(known: Mapping[int, float]) -> dict[int, float]:
    oldest = time.monotonic() - AVOID_SECONDS
    return {job_id: at for job_id, at in known.items() if at > oldest}
