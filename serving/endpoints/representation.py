"""Represent endpoints for the API and pages, with their load now."""

from collections.abc import Sequence
from typing import Any

from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from serving.prewarming.results import COLUMNS, JOINS

_ENDPOINTS = f"""
    SELECT e.id, e.name, t.name AS tenant, o.username AS owner, e.state, e.type, e.cost, e.protocol, e.template,
           CASE WHEN e.replicas_of_id IS NOT NULL THEN s.name END AS shares_replicas_with,
           e.port, e.max_batch, e.max_wait_ms, e.memory_per_request_mb, e.max_queue, e.timeout_seconds, e.min_replicas,
           e.max_replicas, e.idle_seconds, e.prewarming, e.warm_up, e.warm_up_seconds, e.version,
           e.seconds_per_cost, s.cold_start_seconds, s.problem, e.created_at,
           CASE WHEN e.allowed_users IS NOT NULL THEN
               (SELECT coalesce(array_agg(p.username ORDER BY p.username), '{{}}') FROM tenants_people p
                 WHERE p.id = ANY(e.allowed_users)) END AS allowed_users,
           coalesce(q.queued, 0) AS queued, coalesce(g.running, 0) AS running, q.oldest_wait_seconds,
           coalesce(r.replicas, 0) AS replicas, coalesce(r.warm, 0) AS warm, {COLUMNS}
      FROM serving_endpoint e JOIN tenants_all t ON t.id = e.tenant_id JOIN tenants_people o ON o.id = e.owner_id
      JOIN serving_endpoint s ON s.id = coalesce(e.replicas_of_id, e.id)
      LEFT JOIN LATERAL (
           SELECT count(*) AS queued, date_part('epoch', now() - min(queued_at)) AS oldest_wait_seconds
             FROM serving_inferencerequest WHERE endpoint_id = e.id AND state = 'queued') q ON true
      LEFT JOIN (SELECT endpoint_id, count(*) AS running FROM serving_inferencerequest
                  WHERE state = 'running' GROUP BY endpoint_id) g ON g.endpoint_id = e.id
      LEFT JOIN LATERAL (
           SELECT count(*) AS replicas, count(warm_at) AS warm
             FROM serving_replica
            WHERE endpoint_id = s.id AND ended_at IS NULL) r ON true
      {JOINS}
     WHERE e.state <> 'removed' AND (%(ids)s::bigint[] IS NULL OR e.id = ANY(%(ids)s))
       AND (%(visible)s::bigint[] IS NULL OR e.tenant_id = ANY(%(visible)s))
       AND (%(after)s::text[] IS NULL OR (t.name, e.name) > ((%(after)s::text[])[1], (%(after)s::text[])[2]))
     ORDER BY t.name, e.name LIMIT %(limit)s
"""


def represent_endpoints(
    visible: Sequence[int] | None,
    ids: Sequence[int] | None = None,
    *,
    after: tuple[str, str] | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """Return endpoints of these tenants (None: all), by tenant and name. `ids`: only these. `after`: only those after
    this tenant and name."""
    values = {"visible": visible, "ids": None if ids is None else list(ids), "after": after and list(after)}
    rows = query(_ENDPOINTS, {**values, "limit": limit})
    return [{**row, "created_at": rfc3339(row["created_at"])} for row in rows]
