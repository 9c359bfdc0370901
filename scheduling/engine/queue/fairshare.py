"""Computes each tenant's use of the cluster per weight, and orders the tenants."""

from collections.abc import Sequence
from math import log
from typing import NamedTuple

from scheduling.engine.model import Key, Policy, Request, Tenant
from scheduling.engine.queue.job_cost import window_cost

_MIN_WEIGHT, _MAX_WEIGHT = 1e-9, 1e9  # so that no sum of them is infinite, and no part of it 0


class TenantUse:
    """A tenant's use during a cycle. `held_gpus` counts a shared device as a whole one, as its quota does."""

    __slots__ = ("_policy", "charged", "cost", "held_gpus", "tenant", "weight")

    def __init__(self, tenant: Tenant, policy: Policy, weight: float) -> None:
        """`weight`: the effective one, see `entitlements`."""
        self._policy = policy
        self.tenant = tenant
        self.weight = weight
        self.held_gpus = 0
        self.charged = average_gpus(tenant.usage_gpu_seconds, policy)
        self.cost = tenant.window_cost

    def add(self, request: Request, cluster_cpu_milli: int, jobs: int = 1) -> None:
        """Count jobs with this request."""
        self.held_gpus += jobs * request.gpu_count
        self.charged += jobs * charge(request, cluster_cpu_milli)
        self.cost += jobs * window_cost(request, self._policy)

    @property
    def share(self) -> float:
        """Return (decayed use + GPUs held now) / weight, in GPUs."""
        return self.charged / self.weight


class Entitlement(NamedTuple):
    """A tenant's weight, its effective weight, and the two parts that explain it: of all use and of all weights, 0 to
    1."""

    weight: float
    effective: float
    used: float
    entitled: float


def standings(tenants: Sequence[Tenant], policy: Policy) -> dict[int, TenantUse]:
    """Return the use by tenant id, before any running job is added."""
    weights = entitlements(tenants, policy)
    return {tenant.id: TenantUse(tenant, policy, weights[tenant.id].effective) for tenant in tenants}


def entitlements(tenants: Sequence[Tenant], policy: Policy) -> dict[int, Entitlement]:
    """Return each tenant's effective weight, by tenant id: it follows the tenant's past use, within a bound.

    effective = weight x (1 + b x clamp(used / entitled - 1, -1, 1)), with b = `dynamic_share_bound`, used = the
    tenant's part of all GPU time in the policy's history, entitled = its part of all weights. So a tenant that used
    nothing counts (1 - b) times its weight, one that used its part 1 time, and one that used twice its part or more
    (1 + b) times. Without a history all weights count as they are.
    """
    all_used = sum(max(tenant.history_gpu_seconds, 0.0) for tenant in tenants)
    all_weights = sum(map(_weight, tenants))
    by_tenant = {}
    for tenant in tenants:
        weight = _weight(tenant)
        entitled = weight / all_weights
        used = max(tenant.history_gpu_seconds, 0.0) / all_used if all_used else entitled
        follows = min(max(used / entitled - 1.0, -1.0), 1.0)
        by_tenant[tenant.id] = Entitlement(
            weight, weight * (1.0 + policy.dynamic_share_bound * follows), used, entitled
        )
    return by_tenant


def _weight(tenant: Tenant) -> float:
    return min(max(tenant.weight, _MIN_WEIGHT), _MAX_WEIGHT)


def why_entitled(entitlement: Entitlement, policy: Policy) -> str:
    """Return by how much a weight is adjusted and why, in one sentence."""
    weight, effective, used, entitled = entitlement
    percent = round(100.0 * (effective / weight - 1.0))
    if not policy.dynamic_share_bound:
        return f"Its weight of {weight:g} counts as it is: past use does not change weights here."
    return (
        f"It used {used:.0%} of the GPU time of late with {entitled:.0%} of the weights, so its weight of {weight:g} "
        f"counts as {effective:.3g} ({percent:+d} %; at most {policy.dynamic_share_bound:.0%} more or less)."
    )


def average_gpus(usage_gpu_seconds: float, policy: Policy) -> float:
    """Return the number of GPUs that, held for ever, would add up to this decayed use.

    A constant g GPUs decayed with half-life h sum up to g * h / ln 2 GPU-seconds (the integral of g * 2^(-t/h)).
    """
    return usage_gpu_seconds * log(2) / policy.usage_half_life_seconds


def charge(request: Request, cluster_cpu_milli: int) -> float:
    """Return the GPUs that a job counts for: its request, or its part of the cluster's CPU if that is more.

    So a job without GPUs is never free of charge, and one that takes every core counts as one GPU.
    """
    return max(float(request.gpu_count), request.cpu_milli / max(cluster_cpu_milli, 1))


def by_share(use: TenantUse, _head: Key, is_promised: bool) -> Key:
    """Order by: under the guarantee first, then lower tiers, then lower shares, then id.

    The job that holds the promise goes before tiers and shares: it is one job at a time, a stream of a higher tier
    would move its time later for ever, and the promise must not move between tenants with each job that starts or ends.
    """
    over_guarantee, tier = _rank(use)
    return (over_guarantee, not is_promised, tier, use.share, use.tenant.id)


def by_cost_share(use: TenantUse, head: Key, is_promised: bool) -> Key:
    """Order by: under the guarantee first, then lower tiers, then higher bands, then the largest weight / (recent cost
    + cost of the next job), then id. The job that holds the promise goes as if its tenant had spent nothing."""
    spent = 0.0 if is_promised else use.cost
    return (*_rank(use), head[0], not is_promised, (spent + head[1]) / use.weight, use.tenant.id)


def by_head_within_guarantees(use: TenantUse, head: Key, is_promised: bool) -> Key:
    """Order by: under the guarantee first, then lower tiers, then higher bands, then the job that holds the promise,
    then the order of the next job."""
    return (*_rank(use), head[0], not is_promised, *head[1:])


def by_head(_standing: TenantUse, head: Key, _is_promised: bool) -> Key:
    """Order by the next job of each tenant; shares do not matter."""
    return head


def _rank(use: TenantUse) -> tuple[bool, int]:
    return use.held_gpus >= use.tenant.guaranteed_gpus, use.tenant.tier
