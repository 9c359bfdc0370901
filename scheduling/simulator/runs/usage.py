"""Keeps what each tenant of a simulation has used, as the policies ask for it: decayed, of late, and over a month."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from math import exp, log

from scheduling.engine.model import Policy, RunningJob, Tenant

HISTORY_SECONDS = 30 * 86400.0


class Use:
    """One tenant's GPU-seconds: decayed with the half-life, and as a curve of their sum over time."""

    __slots__ = ("_at", "_decay", "_decayed", "_held", "_sums", "_times")

    def __init__(self, policy: Policy, at: float) -> None:
        self._decay = log(2) / policy.usage_half_life_seconds
        self._at, self._held, self._decayed = at, 0, 0.0
        self._times, self._sums = [at], [0.0]

    def hold(self, gpus: int, at: float) -> None:
        """From now on the tenant holds so many. Exact: dU/dt = held - decay x U between two changes."""
        self._decayed, self._at = self.decayed(at), at
        self._sums.append(self._sum(at))
        self._times.append(at)
        self._held = gpus

    def decayed(self, at: float) -> float:
        fade = exp(-self._decay * (at - self._at))
        return self._decayed * fade + self._held * (1.0 - fade) / self._decay

    def since(self, start: float, at: float) -> float:
        """GPU-seconds between two times."""
        return self._sum(at) - self._sum(start)

    def _sum(self, at: float) -> float:
        place = bisect_right(self._times, at) - 1
        if place < 0:
            return 0.0
        if place == len(self._times) - 1:
            return self._sums[-1] + self._held * (at - self._times[-1])
        gap = self._times[place + 1] - self._times[place]
        return self._sums[place] + (self._sums[place + 1] - self._sums[place]) * (at - self._times[place]) / gap


class Ledger:
    """The use of all tenants, by what runs."""

    def __init__(self, tenants: tuple[Tenant, ...], policy: Policy, at: float) -> None:
        self._policy = policy
        self._tenants = tenants
        self._use = {tenant.id: Use(policy, at) for tenant in tenants}

    def changed(self, running: Iterable[RunningJob], at: float) -> None:
        """This is what runs from now on."""
        held = dict.fromkeys(self._use, 0)
        for one in running:
            held[one.tenant_id] += one.request.gpu_count
        for tenant_id, use in self._use.items():
            use.hold(held[tenant_id], at)

    def tenants(self, at: float) -> tuple[Tenant, ...]:
        """As the engine should see them. A pretend GPU costs 1 an hour."""
        if len(self._tenants) == 1:
            return self._tenants  # there is nobody to compare it with
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
