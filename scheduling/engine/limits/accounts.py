"""Enforces the limits of tenants, users and the online split in a cycle, and keeps limits free for waiting jobs."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from scheduling.engine.limits.quotas import Dimension, Limits, Use, limits_of, limits_per_user
from scheduling.engine.model import Job, RunningJob, Tenant

Holder = Job | RunningJob


class LimitPromise(NamedTuple):
    """A waiting job gets its part of the limits at `at`. `spare`: per limit the amount that is free beside it then, for
    jobs that do not end before."""

    job_id: int
    tenant_id: int
    at: float
    spare: list[int]


class ExceededLimit(NamedTuple):
    """A limit that stops a job. `promise`: it is only kept free for another job, until its time."""

    dimension: Dimension
    requested: int
    limit: int
    in_use: int
    promise: LimitPromise | None = None


class Account:
    """The use of the jobs that share some limits."""

    __slots__ = ("_amounts", "dimensions", "in_use", "limits", "promises", "running")

    def __init__(self, limits: Limits) -> None:
        self.dimensions = tuple(dimension for dimension, _ in limits)
        self.limits = tuple(limit for _, limit in limits)
        self.in_use = [0] * len(limits)
        self._amounts: dict[Use, list[int]] = {}
        self.running: list[tuple[float, list[int]]] = []
        self.promises: list[LimitPromise] = []

    def add_running(self, use: Use, bounds: Sequence[float]) -> None:
        """Count jobs that have run since before the cycle, each with this use. `bounds` as in `add_started`."""
        if self.dimensions:
            amounts = self._counted(use)
            self.running.extend([(bound, amounts) for bound in bounds])
            _add(self.in_use, amounts, len(bounds))

    def add_started(self, use: Use, ends_at: float, bound: float) -> None:
        """Count a job that starts now. `ends_at`: its end if nothing else ends it (inf without a time limit); `bound`:
        the upper bound of its end for other jobs."""
        self.add_running(use, (bound,))
        for promise in self.promises:
            if ends_at > promise.at:
                _add(promise.spare, self._counted(use), -1)

    def block(self, use: Use, ends_at: float) -> ExceededLimit | None:
        """Return the first limit that the job would exceed, or would not release in time; None: it may start.

        A limit that is exceeded already does not stop jobs that take nothing of it.
        """
        if not self.dimensions:
            return None
        amounts = self._counted(use)
        for number, amount in enumerate(amounts):
            if amount > 0 and self.in_use[number] + amount > self.limits[number]:
                return ExceededLimit(self.dimensions[number], amount, self.limits[number], self.in_use[number])
        for promise in self.promises:
            if ends_at > promise.at:
                for number, amount in enumerate(amounts):
                    if amount > 0 and promise.spare[number] < amount:
                        counted = self.limits[number] - max(promise.spare[number], 0)
                        return ExceededLimit(self.dimensions[number], amount, self.limits[number], counted, promise)
        return None

    def is_exceeded_by(self, use: Use) -> bool:
        """Return whether the job alone exceeds a limit."""
        return any(amount > limit for amount, limit in zip(self._counted(use), self.limits, strict=True))

    def earliest(self, use: Use, now: float) -> float:
        """Return when the limits allow the job at the latest, by the upper bounds of the running jobs; inf: never."""
        requested, in_use = self._counted(use), self.in_use[:]
        at = now
        for ends_at, released in [*sorted(self.running), (inf, [])]:
            amounts = zip(in_use, requested, self.limits, strict=True)
            if all(amount <= 0 or used + amount <= limit for used, amount, limit in amounts):
                return at
            _add(in_use, released, -1)
            at = ends_at
        return inf

    def promise(self, job: Job, use: Use, at: float) -> None:
        """Keep the limits free for a job from `at` on.

        Later jobs under the same limits pass if they end by then, or if they fit beside it then: a stream of small
        jobs cannot keep a large one out longer than the bounds of what ran when it first met the limit.
        """
        if not self.dimensions:
            return
        spare = list(self.limits)
        _add(spare, self._counted(use), -1)
        for ends_at, amounts in self.running:
            if ends_at > at:
                _add(spare, amounts, -1)
        self.promises.append(LimitPromise(job.id, job.tenant_id, at, spare))

    def remaining(self, number: int) -> int:
        return self.limits[number] - self.in_use[number]

    def _counted(self, use: Use) -> list[int]:
        amounts = self._amounts.get(use)
        if amounts is None:
            amounts = self._amounts[use] = [dimension.amount(use) for dimension in self.dimensions]
        return amounts


class Accounts:
    """The accounts of a snapshot: of each tenant, of its users, and of the online and batch parts of the cluster."""

    def __init__(self, tenants: Iterable[Tenant], parts: tuple[Limits, Limits] | None = None) -> None:
        """`parts`: the limits of batch and online jobs; None: the cluster is not split."""
        self.tenants = {tenant.id: tenant for tenant in tenants}
        self._of_tenant = {tenant.id: Account(limits_of(tenant)) for tenant in self.tenants.values()}
        self._per_user = {tenant.id: limits_per_user(tenant) for tenant in self.tenants.values()}
        self._of_user: dict[tuple[int, int], Account] = {}
        self._parts = None if parts is None else (Account(parts[0]), Account(parts[1]))
        self._plain = {
            id: (account,) for id, account in self._of_tenant.items() if parts is None and not self._per_user[id]
        }

    def of(self, job: Holder) -> Sequence[Account]:
        """Return the accounts that a job counts in, the narrowest first: the limit that stops it is named in this
        order."""
        plain = self._plain.get(job.tenant_id)
        if plain is not None:
            return plain
        accounts = [self._user(job)] if self._per_user[job.tenant_id] else []
        accounts.append(self._of_tenant[job.tenant_id])
        if self._parts is not None:
            accounts.append(self._parts[job.is_online])
        return accounts

    def add_running(self, job: Holder, use: Use, bounds: Sequence[float]) -> None:
        """Count running jobs with the accounts of this one, each with the same use."""
        for account in self.of(job):
            account.add_running(use, bounds)

    def add_started(self, job: Holder, use: Use, ends_at: float, bound: float) -> None:
        for account in self.of(job):
            account.add_started(use, ends_at, bound)

    def block(self, job: Job, use: Use, ends_at: float) -> ExceededLimit | None:
        for account in self.of(job):
            block = account.block(use, ends_at)
            if block is not None:
                return block
        return None

    def is_exceeded_by(self, job: Job, use: Use) -> bool:
        return any(account.is_exceeded_by(use) for account in self.of(job))

    def earliest(self, job: Job, use: Use, now: float) -> float:
        # Each only gets emptier as what runs ends, so all have room when the last has.
        return max(account.earliest(use, now) for account in self.of(job))

    def promise(self, job: Job, use: Use, at: float) -> None:
        for account in self.of(job):
            account.promise(job, use, at)

    def keep_free(self, job: Job, use: Use, now: float) -> None:
        """Promise the job room in the limit that stops it, unless that limit has a promise already.

        Limits that do not stop it make no promise: the tenant's other users must not wait for a user at the limit per
        user.
        """
        for account in self.of(job):
            if account.block(use, inf) is not None:
                if not account.promises:
                    account.promise(job, use, account.earliest(use, now))
                return

    def unaffected_jobs(self, job: Job, block: ExceededLimit) -> Callable[[Job], bool] | None:
        """Return which of its tenant's identical jobs the limit does not concern; None: it stops them all."""
        account = next(account for account in self.of(job) if block.dimension in account.dimensions)
        if account is self._of_tenant[job.tenant_id]:
            return None
        if self._parts is not None and account is self._parts[job.is_online]:
            return lambda other: other.is_online is not job.is_online
        return lambda other: other.user_id != job.user_id

    def exhausted_models(self, job: Job) -> tuple[str, ...]:
        """Return the models, as limits name them, of which the tenant may not have as many more GPUs as the job
        requests."""
        account = self._of_tenant[job.tenant_id]
        return tuple(
            dimension.model
            for number, dimension in enumerate(account.dimensions)
            if dimension.model and account.remaining(number) < job.request.gpu_count
        )

    def _user(self, job: Holder) -> Account:
        key = (job.tenant_id, job.user_id)
        account = self._of_user.get(key)
        if account is None:
            account = self._of_user[key] = Account(self._per_user[job.tenant_id])
        return account


def _add(amounts: list[int], changes: list[int], times: int) -> None:
    for number, change in enumerate(changes):
        amounts[number] += times * change
