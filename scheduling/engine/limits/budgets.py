"""Keeps the jobs of tenants whose hard budget of GPU-hours is used up out of a cycle, and says so."""

from collections.abc import Iterable
from dataclasses import replace
from math import floor, log10

from scheduling.engine.model import Job, PendingGroup, PendingReason, Snapshot, Tenant


def drop_over_budget(snapshot: Snapshot, now: float) -> tuple[Snapshot, tuple[PendingGroup, ...]]:
    """The snapshot without such jobs, and why they wait. Jobs without GPUs use nothing of a budget; jobs that may not
    start yet wait for their time first. What runs goes on."""
    spent = {tenant.id: tenant for tenant in snapshot.tenants if is_exhausted(tenant)}
    if not spent:
        return snapshot, ()
    waiting: dict[int, list[int]] = {}
    jobs: list[Job] = []
    for job in snapshot.jobs:
        if job.tenant_id in spent and job.request.gpu_count and job.eligible_at <= now:
            waiting.setdefault(job.tenant_id, []).append(job.id)
        else:
            jobs.append(job)
    return replace(snapshot, jobs=tuple(jobs)), tuple(_waits(spent.values(), waiting))


def is_exhausted(tenant: Tenant) -> bool:
    return tenant.budget_gpu_hours is not None and tenant.budget_used_gpu_hours >= tenant.budget_gpu_hours


def spent(tenant: Tenant) -> PendingReason:
    evidence: dict[str, str | int | float | bool | None] = {
        "tenant": tenant.name,
        "used": _used(tenant),
        "limit": _plain(tenant.budget_gpu_hours or 0.0),
        "period": tenant.budget_period,
    }
    return PendingReason("budget", evidence)


def _used(tenant: Tenant) -> int | float:
    """Rounded down to whole GPU-hours, under 10 to two digits that count, and never below the limit: what runs goes on
    using it, and the evidence must not change with each cycle."""
    limit, used = tenant.budget_gpu_hours or 0.0, tenant.budget_used_gpu_hours
    if 0 < used < 10:
        decimals = 1 - floor(log10(used))
        used = round(floor(used * 10**decimals) / 10**decimals, decimals)
    else:
        used = float(floor(used))
    return _plain(max(used, limit))


def _waits(tenants: Iterable[Tenant], waiting: dict[int, list[int]]) -> Iterable[PendingGroup]:
    for tenant in sorted(tenants, key=lambda one: one.id):
        if tenant.id in waiting:
            yield PendingGroup(tuple(sorted(waiting[tenant.id])), *spent(tenant))


def _plain(hours: float) -> int | float:
    return int(hours) if hours == int(hours) else hours
