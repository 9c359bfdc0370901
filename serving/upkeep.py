"""Keep serving up once a second in each web process: its lease, the queue, the replicas, and what it learned."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from gpusched.lib.bus import events
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import columns, execute, query, rows
from gpusched.protocol.exits import ExitClass
from serving import counts, payloads
from serving.prewarming import rounds
from serving.replicas.reconcile import reconcile
from serving.requests import claims, endings

# A web process that has not renewed its lease for this long has lost its requests and replicas.
SILENT_SECONDS = 5.0
SWEEP_SECONDS = 3600.0
FORGET_SECONDS = 0.5
# When this process deleted files without a task last, by the monotonic clock.
_swept: Cache[None, float] = Cache()
_LEASE = f"""
    WITH previous AS (SELECT seen_at FROM serving_dispatcher WHERE id = %(me)s)
    INSERT INTO serving_dispatcher (id, seen_at) VALUES (%(me)s, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at
    RETURNING coalesce((SELECT seen_at FROM previous) < seen_at - interval '{SILENT_SECONDS} s', false)
"""
_IS_USED = """
    SELECT EXISTS (SELECT 1 FROM serving_endpoint WHERE state <> 'removed')
        OR EXISTS (SELECT 1 FROM serving_replica WHERE ended_at IS NULL)
        OR EXISTS (SELECT 1 FROM serving_inferencerequest)
"""
# Endpoints whose waiting requests get no replica any more, and why.
_REFUSING = """
    SELECT e.id, CASE WHEN e.state = 'removed' THEN 'endpoint_removed' ELSE 'tenant_archived' END AS code,
           CASE WHEN e.state = 'removed' THEN 'the endpoint was removed' ELSE 'its tenant was archived' END AS error
      FROM serving_endpoint e JOIN tenants_all t ON t.id = e.tenant_id
     WHERE (e.state = 'removed' OR t.archived_at IS NOT NULL) AND EXISTS (
           SELECT 1 FROM serving_inferencerequest r WHERE r.endpoint_id = e.id AND r.state = 'queued')
"""
_SERVES_OPENAI = "SELECT EXISTS (SELECT 1 FROM serving_endpoint WHERE protocol = 'openai' AND state <> 'removed')"
# Only the host with its agent reaches a replica for certain: other web processes may be on other hosts.
_IS_LOCAL = """EXISTS (
           SELECT 1 FROM nodes_ranks k
            WHERE k.job_id = r.job_id AND k.rank = 0 AND k.state = 'running'
              AND k.node_id = ANY(%(nodes)s::bigint[]))"""
_LEAVE = f"""
    UPDATE serving_replica r SET dispatcher = NULL
      FROM jobs_all j, serving_endpoint e
     WHERE j.id = r.job_id AND e.id = r.endpoint_id AND r.ended_at IS NULL AND j.state = 'running'
       AND e.protocol = 'batch' AND r.dispatcher = %(me)s AND NOT {_IS_LOCAL}
    RETURNING r.endpoint_id
"""
_ADOPT = f"""
    UPDATE serving_replica r SET dispatcher = %(me)s
      FROM jobs_all j, serving_endpoint e
     WHERE j.id = r.job_id AND e.id = r.endpoint_id AND r.ended_at IS NULL AND j.state = 'running'
       AND e.protocol = 'batch' AND r.dispatcher IS DISTINCT FROM %(me)s AND NOT EXISTS (
           SELECT 1 FROM serving_dispatcher d
            WHERE d.id = r.dispatcher AND d.seen_at > clock_timestamp() - interval '{SILENT_SECONDS} s')
       AND {_IS_LOCAL}
"""
_REPLICAS = """
    SELECT r.job_id, r.endpoint_id, r.is_draining, r.dispatcher, e.protocol,
           j.state IS NOT DISTINCT FROM 'running' AS is_running,
           j.gpu_memory_mb * greatest(j.gpu_count, 1) AS memory_mb
      FROM serving_replica r JOIN serving_endpoint e ON e.id = r.endpoint_id LEFT JOIN jobs_all j ON j.id = r.job_id
     WHERE r.ended_at IS NULL
"""
_ENDPOINTS = """
    SELECT id, name, max_batch, max_wait_ms / 1000.0::float8 AS max_wait_seconds, timeout_seconds,
           state = 'draining' AS is_draining, memory_per_request_mb, coalesce(replicas_of_id, id) AS replicas_of
      FROM serving_endpoint
     WHERE id = ANY(%(owners)s) OR replicas_of_id = ANY(%(owners)s) AND state <> 'removed' ORDER BY id
"""
# Of the attempt that ended last.
_LOSSES = """
    SELECT DISTINCT ON (job_id) job_id, coalesce(evidence ->> 'class', '') = ANY(%s) AS is_out_of_memory
      FROM jobs_attempts WHERE job_id = ANY(%s::bigint[]) AND ended_at IS NOT NULL ORDER BY job_id, number DESC
"""
# A dispatcher that has just taken a replica over knows of no batch: then `busy_at` stays that of the one before it.
# It may still know a replica that has returned to the queue, which is cold until it runs again.
_SAVE_WARM = """
    UPDATE serving_replica r
       SET warm_at = coalesce(r.warm_at, clock_timestamp() - make_interval(secs => w.warm)),
           busy_at = coalesce(clock_timestamp() - make_interval(secs => w.busy), r.busy_at)
      FROM unnest(%s::bigint[], %s::float8[], %s::float8[]) AS w (job_id, warm, busy)
     WHERE r.job_id = w.job_id AND r.dispatcher = %s
    RETURNING r.endpoint_id
"""
_SAVE_SPEED = """
    UPDATE serving_endpoint e SET seconds_per_cost = s.seconds
      FROM unnest(%s::bigint[], %s::float8[]) AS s (id, seconds) WHERE e.id = s.id
"""
_COLD_STARTS = """
    UPDATE serving_endpoint e SET cold_start_seconds = c.seconds
      FROM (SELECT endpoint_id, percentile_cont(0.5) WITHIN GROUP (
                       ORDER BY date_part('epoch', warm_at - created_at)) AS seconds
              FROM serving_replica WHERE warm_at > clock_timestamp() - interval '7 days' GROUP BY endpoint_id) c
     WHERE e.id = c.endpoint_id
"""
_FORGET_REPLICAS = "DELETE FROM serving_replica WHERE ended_at < clock_timestamp() - interval '7 days'"


@dataclass(frozen=True)
class Upkeep:
    """Replicas to connect to, as (job, endpoint, GPU memory in MiB or None), and their endpoints. `losses`: jobs that
    ended in a batch, and whether they ran out of memory. `jobs`: of all replicas."""

    replicas: list[tuple[int, int, int | None]]
    endpoints: list[dict[str, Any]]
    losses: list[tuple[int, bool]]
    jobs: frozenset[int]


def is_used() -> bool:
    """Return whether there are endpoints, replicas or requests: a server without them needs no upkeep."""
    return bool(rows(_IS_USED)[0][0])


def serves_openai() -> bool:
    """Return whether there are endpoints of the OpenAI API."""
    return bool(rows(_SERVES_OPENAI)[0][0])


def renew_lease(dispatcher: int) -> bool:
    """Keep the requests and replicas of this web process its own. Return whether it had been silent: then the database
    was away, or this machine slept, and the others have yet to renew their leases as well."""
    [(was_silent,)] = rows(_LEASE, {"me": dispatcher})
    return bool(was_silent)


def new_dispatcher() -> int:
    """Return the id of a new dispatcher, with its first lease."""
    [row] = query("INSERT INTO serving_dispatcher (seen_at) VALUES (clock_timestamp()) RETURNING id")
    return int(row["id"])


def keep_queue(*, judges_others: bool = True) -> None:
    """Return lost requests to the queue, end those that expired or get no replica any more, and start and stop
    replicas. Any number of processes may do so at once. `judges_others`: take requests from silent web processes."""
    ended = endings.expire()
    if judges_others:
        events.changed("endpoints", claims.return_of_silent(SILENT_SECONDS))
        if serves_openai():  # only its clients wait in the web process that has their request
            ended += endings.end_abandoned(SILENT_SECONDS)
    for row in query(_REFUSING):
        ended += endings.refuse_all(row["id"], row["code"], row["error"])
    events.changed("tasks", [request.id for request in ended])
    reconcile()


def forget_old() -> bool:
    """Delete tasks whose retention is over, files without a task, replicas that ended long ago, and counts of removed
    endpoints; refresh the cold-start times. Return False if tasks are left for the next time: the end of this process
    must not wait for them."""
    hours: float = settings.ENV.task_retention_hours
    began = time.monotonic()
    while hours and endings.forget(hours) == endings.MAX_AT_ONCE:
        if time.monotonic() - began > FORGET_SECONDS:
            return False
    execute(_FORGET_REPLICAS)
    rounds.forget_old()
    if _swept.last(None, float("-inf")) < time.monotonic() - SWEEP_SECONDS:
        _swept.put(None, time.monotonic())
        payloads.sweep()
    execute(_COLD_STARTS)
    counts.forget_removed()
    return True


def adopt(dispatcher: int, local_nodes: Collection[int], lost: Sequence[int]) -> Upkeep:
    """Take the running replicas on nodes that are connected here and that no living web process has, and leave those
    whose agent is no longer connected here. `lost`: jobs that ended in a batch."""
    values = {"me": dispatcher, "nodes": list(local_nodes)}
    if left := {row["endpoint_id"] for row in query(_LEAVE, values)}:
        events.changed("endpoints", left)  # the web process that has the agent now takes them at once
    execute(_ADOPT, values)
    replicas = query(_REPLICAS)
    mine = [row for row in replicas if row["dispatcher"] == dispatcher and row["is_running"]]
    own = [row for row in mine if row["protocol"] == "batch"]
    losses = query(_LOSSES, [[ExitClass.CUDA_OOM, ExitClass.HOST_OOM], list(lost)]) if lost else []
    return Upkeep(
        [(row["job_id"], row["endpoint_id"], row["memory_mb"]) for row in own if not row["is_draining"]],
        query(_ENDPOINTS, {"owners": sorted({row["endpoint_id"] for row in own})}),
        [(row["job_id"], row["is_out_of_memory"]) for row in losses],
        frozenset(row["job_id"] for row in replicas),
    )


def save(
    dispatcher: int, warm: Sequence[tuple[int, float, float | None]], learned: Sequence[tuple[int, float]]
) -> None:
    """Record what a dispatcher knows of its replicas and endpoints; see Dispatcher."""
    if warm:
        execute(_SAVE_WARM, [*columns(warm, 3), dispatcher])
    save_speeds(learned)


def save_speeds(learned: Sequence[tuple[int, float]]) -> None:
    """Record the measured seconds per cost of endpoints, as (endpoint, seconds)."""
    if learned:
        execute(_SAVE_SPEED, columns(learned, 2))
