"""Load the engine's tenants: their limits, and their use as the policy counts it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import prepared, rows
from scheduling.engine.board.shapes import is_model
from scheduling.engine.model import Policy, Tenant
from tenants.billing import budgets
from tenants.billing.ledger import remaining_sql

_TIERS = {"premium": 0, "standard": 1, "opportunistic": 2}
# The history for dynamic weights (Policy.dynamic_share_bound): use of the last month, reloaded once a minute.
HISTORY_SECONDS = 30 * 86400.0

_OF_BALANCE, _OF_START = remaining_sql("b.as_of"), remaining_sql("started_at")
_TENANTS = f"""
    SELECT t.id, t.name, t.weight, t.tier, q.max_gpus,
           CASE WHEN t.archived_at IS NULL THEN coalesce(q.guaranteed_gpus, 0) ELSE 0 END AS guaranteed_gpus,
           q.max_gpu_memory_mb, q.max_cpu_cores, q.max_memory_mb, q.max_concurrent_jobs, q.max_gpus_per_user,
           coalesce(q.max_gpus_by_model::text, '{{}}') AS max_gpus_by_model, t.allow_preemption, t.can_preempt_others,
           t.preemption_budget_per_hour AS budget,
           coalesce(b.gpu_seconds * {_OF_BALANCE}, 0)
           + coalesce(u.gpu_seconds, 0) AS usage
      FROM tenants_all t LEFT JOIN tenants_quotas q ON q.tenant_id = t.id
      LEFT JOIN tenants_balances b ON b.tenant_id = t.id
      LEFT JOIN (SELECT tenant_id,
                        sum(gpu_weight * %(h)s / ln(2) * (1 - {_OF_START})) AS gpu_seconds
                   FROM nodes_held WHERE started_at IS NOT NULL GROUP BY tenant_id) u ON u.tenant_id = t.id
     ORDER BY t.id
"""
# For tenants with a preemption budget: jobs preempted within the last hour, and jobs being stopped for it.
_PREEMPTED = """
    SELECT j.tenant_id, count(*) FROM jobs_attempts a JOIN jobs_all j ON j.id = a.job_id
     WHERE a.reason = 'preempted' AND a.ended_at > now() - interval '1 hour' AND j.tenant_id = ANY(%(ids)s)
     GROUP BY j.tenant_id
     UNION ALL
    SELECT tenant_id, count(*) FROM jobs_all
     WHERE state = 'stopping' AND stop_reason = 'preempted' AND tenant_id = ANY(%(ids)s) GROUP BY tenant_id
"""
# GPU-seconds by tenant and model since a time. The join starts at tenants, as does the ledger's index.
_PAST = """
    SELECT t.id, e.gpu_model,
           sum(e.gpus * date_part('epoch', e.ended_at - greatest(e.started_at, now() - make_interval(secs => %(s)s))))
      FROM tenants_all t JOIN tenants_usage e ON e.tenant_id = t.id
       AND e.ended_at > now() - make_interval(secs => %(s)s)
     GROUP BY t.id, e.gpu_model
"""
_NOW = """
    SELECT tenant_id, gpu_model,
           sum(gpu_weight * date_part('epoch', now() - greatest(started_at, now() - make_interval(secs => %(s)s))))
      FROM nodes_held WHERE started_at IS NOT NULL GROUP BY tenant_id, gpu_model
"""


# The ledger is long and changes little in a minute.
_histories: Cache[None, dict[int, float]] = Cache(seconds=60.0)


def load_tenants(policy: Policy) -> tuple[Tenant, ...]:
    """Load all tenants with their limits and their use, decayed to now and including running jobs. Values that the
    policy does not use (history, window) are not read, and 0."""
    rows = prepared(_TENANTS, {"h": policy.usage_half_life_seconds})
    used_up = _preempted([row["id"] for row in rows if row["budget"] is not None])
    history = _histories.get(None, _history) if policy.dynamic_share_bound else {}
    costs = _window_costs(policy) if policy.name == "cost_aware" else {}
    bounded = budgets.hard_budgets()
    return tuple(
        Tenant(
            id=row["id"],
            name=row["name"],
            weight=row["weight"],
            tier=_TIERS[row["tier"]],
            guaranteed_gpus=row["guaranteed_gpus"],
            max_gpus=row["max_gpus"],
            max_gpu_memory_mb=row["max_gpu_memory_mb"],
            max_cpu_milli=None if row["max_cpu_cores"] is None else row["max_cpu_cores"] * 1000,
            max_memory_mb=row["max_memory_mb"],
            max_concurrent_jobs=row["max_concurrent_jobs"],
            usage_gpu_seconds=float(row["usage"]),
            max_gpus_per_user=row["max_gpus_per_user"],
            max_gpus_by_model=tuple(sorted(msgspec.json.decode(row["max_gpus_by_model"], type=dict[str, int]).items())),
            history_gpu_seconds=history.get(row["id"], 0.0),
            window_cost=costs.get(row["id"], 0.0),
            allow_preemption=row["allow_preemption"],
            can_preempt_others=row["can_preempt_others"],
            preemptions_left=None if row["budget"] is None else max(row["budget"] - used_up.get(row["id"], 0), 0),
            **_budget(bounded.get(row["id"])),
        )
        for row in rows
    )


def _budget(status: budgets.BudgetStatus | None) -> dict[str, Any]:
    if status is None:
        return {}
    return {
        "budget_gpu_hours": status.hard_gpu_hours,
        "budget_used_gpu_hours": status.used_gpu_hours,
        "budget_period": status.period,
    }


def _preempted(tenant_ids: list[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for tenant_id, count in rows(_PREEMPTED, {"ids": tenant_ids}) if tenant_ids else ():
        counts[tenant_id] = counts.get(tenant_id, 0) + count
    return counts


def _history() -> dict[int, float]:
    """Return GPU-seconds of the last HISTORY_SECONDS, without decay and running jobs."""
    totals: dict[int, float] = {}
    for tenant_id, _, gpu_seconds in rows(_PAST, {"s": HISTORY_SECONDS}):
        totals[tenant_id] = totals.get(tenant_id, 0.0) + float(gpu_seconds)
    return totals


def _window_costs(policy: Policy) -> Mapping[int, float]:
    """Return GPU-hours in the policy's sliding window x the cost of a GPU-hour of their model, by tenant."""
    costs: dict[int, float] = {}
    for sql in (_PAST, _NOW):
        for tenant_id, model, gpu_seconds in rows(sql, {"s": policy.window_seconds}):
            rate = next((cost for word, cost in policy.cost_by_model if is_model(word, model)), 1.0)
            costs[tenant_id] = costs.get(tenant_id, 0.0) + float(gpu_seconds) / 3600 * rate
    return costs
