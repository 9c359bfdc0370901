"""Report the waiting jobs by tenant and user, beside their limits."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings

from gpusched.lib.db.sql import query
from jobs.listing.counts import WAITS
from jobs.submit.queue_limits import DEFERRED

_USED = f"""
    SELECT t.name AS tenant, q.max_queued_jobs, q.max_deferred_jobs, u.username AS "user", w.queued, w.deferred
      FROM (SELECT j.tenant_id, j.user_id, count(*) FILTER (WHERE NOT {DEFERRED}) AS queued,
                   count(*) FILTER (WHERE {DEFERRED}) AS deferred
              FROM jobs_job j WHERE {WAITS} AND (%(visible)s::bigint[] IS NULL OR j.tenant_id = ANY(%(visible)s))
             GROUP BY j.tenant_id, j.user_id) w
      JOIN tenants_all t ON t.id = w.tenant_id JOIN tenants_people u ON u.id = w.user_id
      LEFT JOIN tenants_quotas q ON q.tenant_id = w.tenant_id
     ORDER BY w.queued + w.deferred DESC, t.name, u.username
"""


def queue_usage(visible: Sequence[int] | None) -> list[dict[str, Any]]:
    """Return the tenants (None: all) that have waiting jobs, the one with the most first, each with its users."""
    env = settings.ENV
    tenants: dict[str, dict[str, Any]] = {}
    for row in query(_USED, {"visible": visible}):
        queued, deferred = row["max_queued_jobs"], row["max_deferred_jobs"]
        tenant = tenants.setdefault(
            row["tenant"],
            {
                "tenant": row["tenant"],
                "queued_jobs": 0,
                "deferred_jobs": 0,
                "max_queued_jobs": env.max_queued_jobs_per_tenant if queued is None else queued,
                "max_deferred_jobs": env.max_deferred_jobs_per_tenant if deferred is None else deferred,
                "max_queued_jobs_per_user": env.max_queued_jobs_per_user,
                "max_deferred_jobs_per_user": env.max_deferred_jobs_per_user,
                "users": [],
            },
        )
        tenant["queued_jobs"] += row["queued"]
        tenant["deferred_jobs"] += row["deferred"]
        tenant["users"].append({"user": row["user"], "queued_jobs": row["queued"], "deferred_jobs": row["deferred"]})
    return sorted(tenants.values(), key=lambda usage: (-usage["queued_jobs"] - usage["deferred_jobs"], usage["tenant"]))
