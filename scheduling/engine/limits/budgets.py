"""Removes the jobs of tenants with an exhausted hard budget of GPU-hours from a cycle, with their reason."""

from collections.abc import Iterable
from dataclasses import replace
from math import floor, log10

from scheduling.engine.model import Job, PendingGroup, PendingReason, Snapshot, Tenant


def drop_over_budget(snapshot: Snapshot, now: float) -> tuple[Snapshot, tuple[PendingGroup, ...]]:
    """Return the snapshot without such jobs, and why they wait.

    Jobs without GPUs use no budget; jobs that are not eligible yet wait for their time first. Running jobs continue.
    """
    exhausted = {tenant.id: tenant for tenant in snapshot.tenants if is_exhausted(tenant)}
    if not exhausted:
        return snapshot, ()
    waiting: dict[int, list[int]] = {}
    jobs: list[Job] = []
    for job in snapshot.jobs:
        if job.tenant_id in exhausted and job.request.gpu_count and job.eligible_at <= now:
            waiting.setdefault(job.tenant_id, []).append(job.id)
        else:
            jobs.append(job)
    return replace(snapshot, jobs=tuple(jobs)), tuple(_pending_groups(exhausted.values(), waiting))


def is_exhausted(tenant: Tenant) -> bool:
    return tenant.budget_gpu_hours is not None and tenant.budget_used_gpu_hours >= tenant.budget_gpu_hours


def budget_reason(tenant: Tenant) -> PendingReason:
    """Return the reason of a job whose tenant's budget is exhausted."""
    evidence: dict[str, str | int | float | bool | None] = {
        "tenant": tenant.name,
        "used": _used(tenant),
        "limit": _plain(tenant.budget_gpu_hours or 0.0),
        "period": tenant.budget_period,
    }
    return PendingReason("budget", evidence)


def _used(tenant: Tenant) -> int | float:
    """Return the use, rounded down to whole GPU-hours, under 10 to two significant digits, and at least the limit.

    Running jobs go on using it, and the evidence must not change with each cycle.
    """
    limit, used = tenant.budget_gpu_hours or 0.0, tenant.budget_used_gpu_hours
    if 0 < used < 10:
        decimals = 1 - floor(log10(used))
        used = round(floor(used * 10**decimals) / 10**decimals, decimals)
    else:
        used = float(floor(used))
    return _plain(max(used, limit))


def _pending_groups(tenants: Iterable[Tenant], waiting: dict[int, list[int]]) -> Iterable[PendingGroup]:
    for tenant in sorted(tenants, key=lambda tenant: tenant.id):
        if tenant.id in waiting:
            yield PendingGroup(tuple(sorted(waiting[tenant.id])), *budget_reason(tenant))


def _plain(hours: float) -> int | float:
    return int(hours) if hours == int(hours) else hours
