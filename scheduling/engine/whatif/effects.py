"""Computes the effects of an edit of a quota or of the policy, by two plans: without it and with it."""

from collections.abc import Iterable
from dataclasses import dataclass

from scheduling.engine.board.shapes import is_model
from scheduling.engine.limits.quotas import (
    USER_GPUS,
    Dimension,
    Use,
    gpu_memory_of,
    is_of_models,
    limits_of,
    limits_per_user,
    models_of,
    use_of,
)
from scheduling.engine.model import Node, Plan, RunningJob, Snapshot, Tenant


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that is below the present use, in the units of its sentence. `users`: how many are above a limit per
    user; `in_use`: of the user with the highest use."""

    dimension: Dimension
    in_use: int | float
    limit: int | float
    users: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """Ids of jobs. `starts`: they start only with the edit; `waits`: they start only without it; `impossible`: they
    exceed a limit by themselves only with it; `stops`: they run, and are stopped for others only with it."""

    starts: tuple[int, ...]
    waits: tuple[int, ...]
    impossible: tuple[int, ...]
    stops: tuple[int, ...]


def effect(without: Plan, with_it: Plan) -> Effect:
    plans = without, with_it
    started = [{placement.job_id for placement in plan.placements} for plan in plans]
    impossible = [
        {id for group in plan.waits if group.code == "tenant_limit" for id in group.job_ids} for plan in plans
    ]
    stopped = [{job_id for preemption in plan.preemptions for job_id in preemption.victims} for plan in plans]
    return Effect(
        starts=_added(*started),
        waits=_added(started[1], started[0]),
        impossible=_added(*impossible),
        stops=_added(*stopped),
    )


def exceeded(snapshot: Snapshot, tenant: Tenant) -> list[Excess]:
    """Return the limits of an edited tenant that its running jobs exceed."""
    running = [job for job in snapshot.running if job.tenant_id == tenant.id]
    uses = _uses(running, snapshot.nodes)
    excesses = [
        Excess(dimension, dimension.to_unit(total), dimension.to_unit(limit))
        for dimension, limit in limits_of(tenant)
        if (total := _total(dimension, uses)) > limit
    ]
    limit = tenant.max_gpus_per_user
    if limit is not None:
        gpus_by_user: dict[int, int] = {}
        for job in running:
            gpus_by_user[job.user_id] = gpus_by_user.get(job.user_id, 0) + job.request.gpu_count
        above = [gpus for gpus in gpus_by_user.values() if gpus > limit]
        if above:
            excesses.append(Excess(USER_GPUS, max(above), limit, len(above)))
    return excesses


def in_use(
    name: str, tenant: Tenant, user_id: int, running: Iterable[RunningJob], nodes: Iterable[Node]
) -> int | float:
    """Return the use of the limit of this name, in the unit of its sentence: of its tenant, or of one user."""
    if is_of_models(name):
        tenant_jobs = [job for job in running if job.tenant_id == tenant.id]
        counts = [entry for use in _uses(tenant_jobs, nodes) for entry in use.models]
        limited = [word for word, _ in tenant.max_gpus_by_model]
        return sum(count for names, count in counts if any(is_model(word, name) for word in limited for name in names))
    [dimension] = [entry for entry, _ in (*limits_of(tenant), *limits_per_user(tenant)) if entry.name == name]
    counted = [
        job for job in running if job.tenant_id == tenant.id and (dimension is not USER_GPUS or job.user_id == user_id)
    ]
    return dimension.to_unit(_total(dimension, _uses(counted, nodes)))


def _uses(running: Iterable[RunningJob], nodes: Iterable[Node]) -> list[Use]:
    devices = [device for node in nodes for device in node.devices]
    memory_mb = {device.id: device.memory_mb for device in devices}
    models = {device.id: device.model for device in devices}
    return [
        use_of(job.request, gpu_memory_of(job.request, job.ranks, memory_mb), models_of(job.ranks, models))
        for job in running
    ]


def _total(dimension: Dimension, uses: Iterable[Use]) -> int:
    return sum(dimension.amount(use) for use in uses)


def _added(previous: set[int], current: set[int]) -> tuple[int, ...]:
    return tuple(sorted(current - previous))
