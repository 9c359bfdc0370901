"""Tracks each tenant's use in a simulation as the policies need it: decayed, recent, and over a month."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from math import exp, log

from scheduling.engine.model import Policy, RunningJob, Tenant

HISTORY_SECONDS = 30 * 86400.0


class Use:
    """One tenant's GPU-seconds: decayed with the half-life, and as a curve of their sum over time."""

    __slots__ = ("_at", "_decay", "_decayed", "_gpus", "_sums", "_times")

    def __init__(self, policy: Policy, at: float) -> None:
        self._decay = log(2) / policy.usage_half_life_seconds
        self._at, self._gpus, self._decayed = at, 0, 0.0
        self._times, self._sums = [at], [0.0]

    def hold(self, gpus: int, at: float) -> None:
        """Set the GPUs that the tenant holds from now on. Exact: dU/dt = held - decay x U between two changes."""
        self._decayed, self._at = self.decayed(at), at
        self._sums.append(self._sum(at))
        self._times.append(at)
        self._gpus = gpus

    def decayed(self, at: float) -> float:
        fade = exp(-self._decay * (at - self._at))
        return self._decayed * fade + self._gpus * (1.0 - fade) / self._decay

    def since(self, start: float, at: float) -> float:
        """Return the GPU-seconds between two times."""
        return self._sum(at) - self._sum(start)

    def _sum(self, at: float) -> float:
        index = bisect_right(self._times, at) - 1
        if index < 0:
            return 0.0
        if index == len(self._times) - 1:
            return self._sums[-1] + self._gpus * (at - self._times[-1])
        gap = self._times[index + 1] - self._times[index]
        return self._sums[index] + (self._sums[index + 1] - self._sums[index]) * (at - self._times[index]) / gap


class Ledger:
    """The use of all tenants, computed from the running jobs."""

    def __init__(self, tenants: tuple[Tenant, ...], policy: Policy, at: float) -> None:
        self._policy = policy
        self._tenants = tenants
        self._use = {tenant.id: Use(policy, at) for tenant in tenants}

    def changed(self, running: Iterable[RunningJob], at: float) -> None:
        """Record the jobs that run from now on."""
        gpus = dict.fromkeys(self._use, 0)
        for job in running:
            gpus[job.tenant_id] += job.request.gpu_count
        for tenant_id, use in self._use.items():
            use.hold(gpus[tenant_id], at)

    def tenants(self, at: float) -> tuple[Tenant, ...]:
        """Return the tenants as the engine should see them. A simulated GPU costs 1 an hour."""
        if len(self._tenants) == 1:
            return self._tenants  # a single tenant is compared with none
        window = self._policy.window_seconds
        return tuple(
            replace(
                tenant,
                usage_gpu_seconds=self._use[tenant.id].decayed(at),
                history_gpu_seconds=self._use[tenant.id].since(at - HISTORY_SECONDS, at),
                window_cost=self._use[tenant.id].since(at - window, at) / 3600.0,
            )
            for tenant in self._tenants
        )
