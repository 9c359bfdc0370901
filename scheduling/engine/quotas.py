"""Keeps every tenant under its hard limits, and keeps a limit free in time for the tenant's job that waits for it."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from scheduling.engine.model import RankPlacement, Request, Tenant


class Use(NamedTuple):
    """What a job takes of its tenant's limits.

    A device counts as one GPU, shared or not. `gpu_memory_mb`: of a device held whole all its memory (what was asked
    for where the device's is unknown), of a shared one what the job takes.
    """

    gpus: int
    gpu_memory_mb: int
    cpu_milli: int
    memory_mb: int
    jobs: int = 1


# As the sentences name them, with the units that make one of them; in the order of Use.
DIMENSIONS = (
    ("GPUs", 1),
    ("MiB of GPU memory", 1),
    ("CPU cores", 1000),
    ("MiB of memory", 1),
    ("concurrent jobs", 1),
)


class Promise(NamedTuple):
    """A waiting job of the tenant gets its part of the limits at `at`; `spare`: per limited dimension what is left
    beside it then, for jobs that do not end before."""

    job_id: int
    at: float
    spare: list[int]


class Block(NamedTuple):
    """A limit that stops a job. `promise`: it is only kept free for another job of the tenant, until its time."""

    dimension: int
    limit: int
    in_use: int
    promise: Promise | None = None


class Account:
    """What one tenant uses while a cycle goes on. Only limited dimensions are counted."""

    __slots__ = ("dimensions", "in_use", "limits", "promises", "running", "tenant")

    def __init__(self, tenant: Tenant) -> None:
        limits = limits_of(tenant)
        self.tenant = tenant
        self.dimensions = tuple(number for number, limit in enumerate(limits) if limit is not None)
        self.limits = tuple(limit for limit in limits if limit is not None)
        self.in_use = [0] * len(self.dimensions)
        self.running: list[tuple[float, list[int]]] = []
        self.promises: list[Promise] = []

    def take(self, use: Use, ends_at: float, bound: float) -> None:
        """A job holds this now. `ends_at`: when it ends if nothing else ends it (inf without a time limit); `bound`:
        the upper bound that others may count on."""
        if not self.dimensions:
            return
        wanted = self._limited(use)
        self.running.append((bound, wanted))
        _add(self.in_use, wanted, 1)
        for promise in self.promises:
            if ends_at > promise.at:
                _add(promise.spare, wanted, -1)

    def block(self, use: Use, ends_at: float) -> Block | None:
        """The first limit that the job would exceed, or that it would not give back in time; None: it may start."""
        if not self.dimensions:
            return None
        wanted = self._limited(use)
        for number, want in enumerate(wanted):
            if self.in_use[number] + want > self.limits[number]:
                return Block(self.dimensions[number], self.limits[number], self.in_use[number])
        for promise in self.promises:
            if ends_at > promise.at:
                for number, want in enumerate(wanted):
                    if want > 0 and promise.spare[number] < want:
                        counted = self.limits[number] - max(promise.spare[number], 0)
                        return Block(self.dimensions[number], self.limits[number], counted, promise)
        return None

    def exceeded(self, use: Use) -> Block | None:
        """The first limit that the job exceeds all by itself."""
        for number, want in enumerate(self._limited(use)):
            if want > self.limits[number]:
                return Block(self.dimensions[number], self.limits[number], 0)
        return None

    def earliest(self, use: Use, now: float) -> float:
        """When the limits leave room for the job at the latest, by the upper bounds of what runs; inf: never."""
        wanted, in_use = self._limited(use), self.in_use[:]
        at = now
        for ends_at, held in [*sorted(self.running), (inf, [])]:
            if all(used + want <= limit for used, want, limit in zip(in_use, wanted, self.limits, strict=True)):
                return at
            _add(in_use, held, -1)
            at = ends_at
        return inf

    def promise(self, job_id: int, use: Use, at: float) -> None:
        """Keep room for a job from `at` on.

        The tenant's later jobs pass if they end by then, or if they fit beside it then: a stream of small jobs cannot
        keep a large one out of its quota longer than the bounds of what ran when it came to the head of its tenant.
        """
        if not self.dimensions:
            return
        spare = list(self.limits)
        _add(spare, self._limited(use), -1)
        for ends_at, held in self.running:
            if ends_at > at:
                _add(spare, held, -1)
        self.promises.append(Promise(job_id, at, spare))

    def _limited(self, use: Use) -> list[int]:
        return [use[number] for number in self.dimensions]


def limits_of(tenant: Tenant) -> tuple[int | None, ...]:
    """In the order of Use."""
    return (
        tenant.max_gpus,
        tenant.max_gpu_memory_mb,
        tenant.max_cpu_milli,
        tenant.max_memory_mb,
        tenant.max_concurrent_jobs,
    )


def use_of(request: Request, gpu_memory_mb: int) -> Use:
    return Use(request.gpu_count, gpu_memory_mb, request.cpu_milli, request.memory_mb)


def gpu_memory_of(request: Request, ranks: tuple[RankPlacement, ...], memory_mb: Mapping[int, int | None]) -> int:
    """MiB that the ranks of a job count for. `memory_mb`: device id -> its memory, None where unknown."""
    total = 0
    for rank in ranks:
        for hold in rank.holds:
            whole = memory_mb.get(hold.device_id) or request.gpu_memory_mb or 0
            total += whole if hold.memory_mb is None else hold.memory_mb
    return total


def in_units(dimension: int, amount: int) -> int | float:
    """An amount as its sentence counts it: 1500 millicores are 1.5 CPU cores."""
    whole, rest = divmod(amount, DIMENSIONS[dimension][1])
    return amount / DIMENSIONS[dimension][1] if rest else whole


def _add(amounts: list[int], others: list[int], sign: int) -> None:
    for number, other in enumerate(others):
        amounts[number] += sign * other
