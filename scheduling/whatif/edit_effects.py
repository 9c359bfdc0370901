"""Shows what an edit of a quota or of the policy would do now, in numbers and sentences, before it is made."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpusched.lib.api.problems import Problem
from gpusched.protocol.reasons import fix_plurals
from scheduling.cycle.tenants import load_tenants
from scheduling.engine.board.shapes import is_model
from scheduling.engine.model import Policy, Snapshot, Tenant, public_id
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.effects import Effect, Excess, exceeded
from scheduling.engine.whatif.questions import Present
from scheduling.whatif import current
from scheduling.whatif.client import ask
from tenants.tenancy import archived
from tenants.tenancy.tenants import NO_EFFECT

logger = logging.getLogger(__name__)
# So many ids of jobs are named of each kind.
MAX_NAMED = 20


def quota_effect(tenant_id: int, limits: Mapping[str, Any]) -> dict[str, Any]:
    """The effect of other limits of a tenant. Nothing that runs is stopped by lowering one."""
    if archived.is_archived(tenant_id):
        limits = {**limits, "guaranteed_gpus": 0}  # void until it is restored
    here = current.take_snapshot()
    old = next(one for one in here.snapshot.tenants if one.id == tenant_id)
    new = tuple(_edited(one, limits) if one.id == tenant_id else one for one in here.snapshot.tenants)
    edited = replace(here.snapshot, tenants=new)
    found = _found(here, edited, here.policy)
    tenant = next(one for one in new if one.id == tenant_id)
    above = exceeded(edited, tenant)
    said = [*_above(tenant, above), *_borrowed(old, tenant, edited), *_foreseen(found, edited), *_idle(tenant, edited)]
    return _shown(found, edited, above, said)


def policy_effect(new: Policy) -> dict[str, Any]:
    """The effect of another policy."""
    here = current.take_snapshot()
    edited = replace(here.snapshot, tenants=load_tenants(new))
    found = _found(here, edited, new)
    return _shown(found, edited, [], list(_foreseen(found, edited)))


def _found(here: Present, edited: Snapshot, new: Policy) -> Effect | None:
    """None: too many wait to plan twice while somebody waits for the answer, or there is none. An edit that is meant
    is not refused for that."""
    if len(edited.jobs) > current.MAX_JOBS:
        return None
    try:
        return ask(here, questions.changed, edited.tenants, new)
    except Problem as problem:
        logger.warning("the effect of an edit is unknown: %s", problem)
        return None


def _foreseen(found: Effect | None, snapshot: Snapshot) -> list[str]:
    if found is None and len(snapshot.jobs) > current.MAX_JOBS:
        return [f"{len(snapshot.jobs)} jobs wait, too many to foresee which would start or stop"]
    if found is None:
        return ["which jobs would start or stop could not be worked out now"]
    return list(_affected(found, snapshot))


def _edited(tenant: Tenant, limits: Mapping[str, Any]) -> Tenant:
    cores = limits.get("max_cpu_cores")
    return replace(
        tenant,
        guaranteed_gpus=limits.get("guaranteed_gpus") or 0,
        max_gpus=limits.get("max_gpus"),
        max_gpu_memory_mb=limits.get("max_gpu_memory_mb"),
        max_cpu_milli=None if cores is None else cores * 1000,
        max_memory_mb=limits.get("max_memory_mb"),
        max_concurrent_jobs=limits.get("max_concurrent_jobs"),
        max_gpus_per_user=limits.get("max_gpus_per_user"),
        max_gpus_by_model=tuple(sorted((limits.get("max_gpus_by_model") or {}).items())),
    )


def _shown(found: Effect | None, snapshot: Snapshot, above: Sequence[Excess], said: list[str]) -> dict[str, Any]:
    known = found or Effect((), (), (), ())
    return {
        "running_over": [
            {"dimension": one.dimension.name, "in_use": one.in_use, "limit": one.limit, "users": one.users}
            for one in above
        ],
        "would_start": _jobs(known.starts, snapshot),
        "would_wait": _jobs(known.waits, snapshot),
        "would_never_start": _jobs(known.impossible, snapshot),
        "would_stop": _jobs(known.stops, snapshot),
        "sentences": [fix_plurals(sentence) for sentence in said] or [NO_EFFECT],
        # What somebody should have seen before it is so.
        "contradicts": bool(above or known.impossible or known.stops or found is None),
    }


def _jobs(ids: Sequence[int], snapshot: Snapshot) -> dict[str, Any]:
    named = list(dict.fromkeys(public_id(job_id) for job_id in ids))
    return {"jobs": len(ids), "gpus": _gpus(ids, snapshot), "ids": named[:MAX_NAMED]}


def _gpus(ids: Collection[int], snapshot: Snapshot) -> int:
    wanted = set(ids)
    waiting = sum(job.request.gpu_count for job in snapshot.jobs if job.id in wanted)
    return waiting + sum(job.request.gpu_count for job in snapshot.running if job.job_id in wanted)


def _above(tenant: Tenant, above: Sequence[Excess]) -> Iterator[str]:
    for one in above:
        name = one.dimension.name
        if one.users:
            who = f"{one.users} users of tenant {tenant.name} hold" if one.users > 1 else "a user holds"
            yield (
                f"{who} up to {one.in_use} GPUs, more than the limit of {one.limit} per user: their running jobs go on,"
                " and they start nothing new on GPUs until they hold less"
            )
        else:
            yield (
                f"tenant {tenant.name} uses {one.in_use} {name}, more than the limit of {one.limit}:"
                f" its running jobs go on, and it starts nothing more that needs {name} until it uses less"
            )


def _borrowed(old: Tenant, tenant: Tenant, snapshot: Snapshot) -> Iterator[str]:
    """What it holds beyond its guarantee, if an edit of that changes how much it is."""
    held = sum(job.request.gpu_count for job in snapshot.running if job.tenant_id == tenant.id)
    was, now = (max(0, held - one.guaranteed_gpus) for one in (old, tenant))
    if now == was:
        return
    told = f"{now} of the {held} GPUs that it holds would be borrowed ({was} now)"
    if now > was:
        yield f"{told}: nothing is stopped by that, and others under their guarantee may take them back"
    else:
        yield f"{told}: fewer may be taken back"


def _affected(found: Effect, snapshot: Snapshot) -> Iterator[str]:
    for ids, what in (
        (found.starts, "would start now that otherwise wait"),
        (found.waits, "would wait that otherwise start now"),
        (found.impossible, "would be more than a limit allows at all, and could never start"),
        (found.stops, "would be stopped for others"),
    ):
        if ids:
            kind = "running" if ids is found.stops else "waiting"
            yield f"{len(ids)} {kind} jobs ({_gpus(ids, snapshot)} GPUs) {what}"


def _idle(tenant: Tenant, snapshot: Snapshot) -> Iterator[str]:
    """What is set and has no effect on the cluster as it is."""
    devices = [device for node in snapshot.nodes for device in node.devices]
    guaranteed = sum(one.guaranteed_gpus for one in snapshot.tenants)
    if tenant.guaranteed_gpus and guaranteed > len(devices):
        yield (
            f"the guarantees of all tenants are {guaranteed} GPUs together, and there are {len(devices)}:"
            " not all of them can be kept at once"
        )
    if tenant.max_gpus is not None and tenant.max_gpus >= len(devices) > 0:
        yield f"the limit of {tenant.max_gpus} GPUs has no effect yet: there are {len(devices)}"
    for model, _ in tenant.max_gpus_by_model:
        if not any(is_model(model, device.model) for device in devices):
            yield f"the limit for {model} has no effect yet: no GPU is of that model"
