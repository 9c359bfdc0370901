"""Says how much of the cluster each tenant uses for its weight, and which tenant is served next."""

from math import log

from scheduling.engine.model import Key, Policy, Request, Tenant

_LEAST_WEIGHT = 1e-9


class Standing:
    """A tenant's use while a cycle goes on. `held_gpus` counts a shared device as a whole one, as its quota does."""

    __slots__ = ("charged", "held_gpus", "tenant", "weight")

    def __init__(self, tenant: Tenant, policy: Policy) -> None:
        self.tenant = tenant
        self.weight = max(tenant.weight, _LEAST_WEIGHT)
        self.held_gpus = 0
        self.charged = average_gpus(tenant.usage_gpu_seconds, policy)

    def add(self, request: Request, cluster_cpu_milli: int) -> None:
        self.held_gpus += request.gpu_count
        self.charged += charge(request, cluster_cpu_milli)

    @property
    def share(self) -> float:
        """(decayed use + what is held now) / weight, in GPUs."""
        return self.charged / self.weight


def average_gpus(usage_gpu_seconds: float, policy: Policy) -> float:
    """Decayed use as the number of GPUs that, held for ever, would give it.

    A constant g GPUs decayed with half-life h sum up to g * h / ln 2 GPU-seconds (the integral of g * 2^(-t/h)).
    """
    return usage_gpu_seconds * log(2) / policy.usage_half_life_seconds


def charge(request: Request, cluster_cpu_milli: int) -> float:
    """GPUs that a job counts for: those it asks for, or its part of the cluster's CPU where that is more.

    So a job without GPUs is never free of charge, and one that takes every core counts as one GPU.
    """
    return max(float(request.gpu_count), request.cpu_milli / max(cluster_cpu_milli, 1))


def by_share(standing: Standing, _head: Key, is_promised: bool) -> Key:
    """Tenants under their guarantee, then lower tiers, then lower shares, then by id.

    The job that holds the reservation goes as if its tenant used nothing: shares move with every job that starts or
    ends, and the promise must not hop between tenants with them.
    """
    tenant = standing.tenant
    over_guarantee = standing.held_gpus >= tenant.guaranteed_gpus
    return (over_guarantee, tenant.tier, -1.0 if is_promised else standing.share, tenant.id)


def by_head(_standing: Standing, head: Key, _is_promised: bool) -> Key:
    """Whoever's next job comes first; shares do not matter."""
    return head
