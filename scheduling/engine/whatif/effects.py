"""Says what an edit of a quota or of the policy would change now, by two plans: without it and with it."""

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
    """A limit that is below what runs already, in the units of its sentence. `users`: how many are above a limit per
    user; `in_use`: of the one who uses most."""

    dimension: Dimension
    in_use: int | float
    limit: int | float
    users: int = 0


@dataclass(frozen=True, slots=True)
class Effect:
    """Ids of jobs: that start with the edit and not without; the reverse; that are above a limit all by themselves only
    with it; that run, and are stopped for others only with it."""

    starts: tuple[int, ...]
    waits: tuple[int, ...]
    never: tuple[int, ...]
    stops: tuple[int, ...]


def effect(without: Plan, with_it: Plan) -> Effect:
    started = [{one.job_id for one in made.placements} for made in (without, with_it)]
    barred = [
        {id for one in made.waits if one.code == "tenant_limit" for id in one.job_ids} for made in (without, with_it)
    ]
    stopped = [{job for one in made.preemptions for job in one.victims} for made in (without, with_it)]
    return Effect(
        starts=_added(*started),
        waits=_added(started[1], started[0]),
        never=_added(*barred),
        stops=_added(*stopped),
    )


def exceeded(snapshot: Snapshot, tenant: Tenant) -> list[Excess]:
    """The limits of a tenant, as it is to be, that its running jobs are above."""
    running = [one for one in snapshot.running if one.tenant_id == tenant.id]
    uses = _uses(running, snapshot.nodes)
    found = [
        Excess(dimension, dimension.to_unit(held), dimension.to_unit(limit))
        for dimension, limit in limits_of(tenant)
        if (held := _total(dimension, uses)) > limit
    ]
    limit = tenant.max_gpus_per_user
    if limit is not None:
        held_by: dict[int, int] = {}
        for one in running:
            held_by[one.user_id] = held_by.get(one.user_id, 0) + one.request.gpu_count
        above = [held for held in held_by.values() if held > limit]
        if above:
            found.append(Excess(USER_GPUS, max(above), limit, len(above)))
    return found


def in_use(
    name: str, tenant: Tenant, user_id: int, running: Iterable[RunningJob], nodes: Iterable[Node]
) -> int | float:
    """What runs of the limit of this name, in the unit of its sentence: of its tenant, or of one user."""
    if is_of_models(name):
        own = [one for one in running if one.tenant_id == tenant.id]
        held = [model for use in _uses(own, nodes) for model in use.models]
        words = [word for word, _ in tenant.max_gpus_by_model]
        return sum(count for names, count in held if any(is_model(word, one) for word in words for one in names))
    [dimension] = [one for one, _ in (*limits_of(tenant), *limits_per_user(tenant)) if one.name == name]
    of_whom = [
        one for one in running if one.tenant_id == tenant.id and (dimension is not USER_GPUS or one.user_id == user_id)
    ]
    return dimension.to_unit(_total(dimension, _uses(of_whom, nodes)))


def _uses(running: Iterable[RunningJob], nodes: Iterable[Node]) -> list[Use]:
    devices = [device for node in nodes for device in node.devices]
    memory_mb = {device.id: device.memory_mb for device in devices}
    models = {device.id: device.model for device in devices}
    return [
        use_of(one.request, gpu_memory_of(one.request, one.ranks, memory_mb), models_of(one.ranks, models))
        for one in running
    ]


def _total(dimension: Dimension, uses: Iterable[Use]) -> int:
    return sum(dimension.amount(use) for use in uses)


def _added(before: set[int], after: set[int]) -> tuple[int, ...]:
    return tuple(sorted(after - before))
