"""Read the load of endpoints for pages: their queue, replicas and latest requests, and the cost of a day by user.

Every query is bounded: an endpoint may keep a million ended requests for a day."""

from collections.abc import Sequence

from gpusched.lib.db.sql import Row, prepared
from serving.prewarming.results import COLUMNS, JOINS

# Latencies and batches are those of this many requests that ended last, if they ended within these minutes.
WINDOW_REQUESTS, WINDOW_MINUTES = 1000, 15
COST_HOURS = 24
MAX_USERS, MAX_REPLICAS = 10, 100
PERCENTILES = ("p50_seconds", "p95_seconds", "p99_seconds")
_LOADS = f"""
    SELECT e.id, e.tenant_id, e.name, t.name AS tenant, t.archived_at IS NOT NULL AS is_archived, e.state, e.version,
           e.type, e.protocol, o.problem, e.max_queue, o.max_replicas, o.cold_start_seconds, e.prewarming,
           q.queued, q.oldest_at, coalesce(g.running, 0) AS running, r.replicas, r.warm,
           date_part('epoch', now() - q.oldest_at) AS oldest_wait_seconds, {COLUMNS}
      FROM serving_endpoint e JOIN tenants_all t ON t.id = e.tenant_id
      JOIN serving_endpoint o ON o.id = coalesce(e.replicas_of_id, e.id)
     CROSS JOIN LATERAL (
           SELECT count(*) AS queued, min(queued_at) AS oldest_at
             FROM serving_inferencerequest WHERE endpoint_id = e.id AND state = 'queued') q
     CROSS JOIN LATERAL (
           SELECT count(*) AS replicas, count(warm_at) AS warm
             FROM serving_replica WHERE endpoint_id = o.id AND ended_at IS NULL) r
      LEFT JOIN (SELECT endpoint_id, count(*) AS running FROM serving_inferencerequest
                  WHERE state = 'running' GROUP BY endpoint_id) g ON g.endpoint_id = e.id
      {JOINS}
     WHERE e.state <> 'removed' AND (%(ids)s::bigint[] IS NULL OR e.id = ANY(%(ids)s))
     ORDER BY t.name, e.name
"""
# Not clock_timestamp(): an index condition needs a stable value.
_WINDOW = f"""
    FROM unnest(%(ids)s::bigint[]) AS e (id) CROSS JOIN LATERAL (
         SELECT endpoint_id, state, date_part('epoch', ended_at - queued_at) AS seconds, batch_size, flush_reason
           FROM serving_inferencerequest
          WHERE endpoint_id = e.id AND state NOT IN ('queued', 'running')
            AND ended_at > now() - interval '{WINDOW_MINUTES} min'
          ORDER BY ended_at DESC LIMIT {WINDOW_REQUESTS}) w
"""
_LATENCIES = f"""
    SELECT endpoint_id, percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY seconds)
                            FILTER (WHERE state = 'completed') AS percentiles,
           count(*) FILTER (WHERE state = 'completed') AS completed, count(*) FILTER (WHERE state = 'failed') AS failed,
           count(*) FILTER (WHERE state = 'expired') AS expired,
           count(*) FILTER (WHERE state = 'cancelled') AS cancelled,
           count(*) FILTER (WHERE state = 'refused') AS refused
    {_WINDOW} GROUP BY endpoint_id
"""
_BATCHES = f"""
    SELECT endpoint_id, batch_size, flush_reason, count(*) AS requests
    {_WINDOW} WHERE batch_size IS NOT NULL AND flush_reason <> '' GROUP BY 1, 2, 3
"""
# The users with the highest cost of each endpoint; `users` and `total` count all of them.
_COSTS = f"""
    SELECT * FROM (
        SELECT u.endpoint_id, p.username AS "user", sum(u.cost) AS cost, sum(u.requests)::bigint AS requests,
               count(*) OVER w AS users, sum(sum(u.cost)) OVER w AS total,
               row_number() OVER (PARTITION BY u.endpoint_id ORDER BY sum(u.cost) DESC, p.username) AS place
          FROM serving_use u JOIN tenants_people p ON p.id = u.user_id
         WHERE u.endpoint_id = ANY(%(ids)s::bigint[])
           AND u.hour > now() - interval '{COST_HOURS} hours'
         GROUP BY u.endpoint_id, p.username WINDOW w AS (PARTITION BY u.endpoint_id)) c
     WHERE place <= %(most)s ORDER BY endpoint_id, place
"""
_REPLICAS = """
    SELECT e.id AS endpoint_id, r.job_id, j.state AS job_state, r.created_at, r.warm_at, r.is_draining,
           date_part('epoch', r.warm_at - r.created_at) AS cold_start_seconds, coalesce(g.running, 0) AS running,
           date_bin('5 s', greatest(r.warm_at, r.busy_at), '2000-01-01') AS used_at
      FROM serving_endpoint e
     CROSS JOIN LATERAL (SELECT * FROM serving_replica
                          WHERE endpoint_id = coalesce(e.replicas_of_id, e.id) AND ended_at IS NULL
                          ORDER BY job_id LIMIT %(most)s) r
      LEFT JOIN jobs_all j ON j.id = r.job_id
      LEFT JOIN (SELECT replica_job_id, count(*) AS running FROM serving_inferencerequest
                  WHERE state = 'running' GROUP BY replica_job_id) g ON g.replica_job_id = r.job_id
     WHERE e.id = ANY(%(ids)s::bigint[]) ORDER BY e.id, r.job_id
"""


def loads(ids: Sequence[int] | None = None) -> dict[int, Row]:
    """Return the queue and the number of replicas of endpoints by id; None: of all that are not removed. The replicas
    of an endpoint that shares those of another one are these."""
    return {row["id"]: row for row in prepared(_LOADS, {"ids": None if ids is None else list(ids)})}


def latencies(ids: Sequence[int]) -> dict[int, Row]:
    """Return the latencies of completed requests, from submit to end, and the ends by state, in the window."""
    rows = {}
    for row in prepared(_LATENCIES, {"ids": list(ids)}):
        percentiles = row.pop("percentiles") or [None] * len(PERCENTILES)
        rows[row.pop("endpoint_id")] = {**row, **dict(zip(PERCENTILES, percentiles, strict=True))}
    return rows


def batches(ids: Sequence[int]) -> dict[int, list[Row]]:
    """Return by endpoint the number of requests in the window by the size of their batch, in powers of two, and why it
    was flushed: `from`, `to` and {reason: requests}, from the smallest size to the largest."""
    counts: dict[int, dict[int, dict[str, int]]] = {}
    for row in prepared(_BATCHES, {"ids": list(ids)}):
        largest = 1 << (row["batch_size"] - 1).bit_length()
        reasons = counts.setdefault(row["endpoint_id"], {}).setdefault(largest, {})
        reasons[row["flush_reason"]] = reasons.get(row["flush_reason"], 0) + row["requests"]
    return {
        endpoint: [
            {"from": largest // 2 + 1, "to": largest, "reasons": dict(sorted(bins[largest].items()))}
            for largest in sorted(bins)
        ]
        for endpoint, bins in counts.items()
    }


def costs(ids: Sequence[int], most: int = MAX_USERS) -> dict[int, list[Row]]:
    """Return by endpoint the users with the highest cost of completed requests within COST_HOURS, highest first. Each
    row has the `total` and the number of `users` of its endpoint."""
    return _grouped(prepared(_COSTS, {"ids": list(ids), "most": most}), "place")


def replicas(ids: Sequence[int]) -> dict[int, list[Row]]:
    """Return by endpoint the jobs that serve it, at most MAX_REPLICAS. `used_at`: when its latest request ended,
    to 5 s; `cold_start_seconds`: from its submit until it accepted requests."""
    return _grouped(prepared(_REPLICAS, {"ids": list(ids), "most": MAX_REPLICAS}))


def _grouped(rows: Sequence[Row], *dropped: str) -> dict[int, list[Row]]:
    groups: dict[int, list[Row]] = {}
    for row in rows:
        kept = {name: value for name, value in row.items() if name not in ("endpoint_id", *dropped)}
        groups.setdefault(row["endpoint_id"], []).append(kept)
    return groups
