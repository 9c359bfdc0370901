"""Compute the effect of an edit of a quota or of the policy before it is made, in numbers and sentences."""

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
# Maximum job ids listed for each kind of effect.
MAX_NAMED = 20


def quota_effect(tenant_id: int, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the effect of other limits of a tenant. Lowering a limit does not stop running jobs."""
    if archived.is_archived(tenant_id):
        limits = {**limits, "guaranteed_gpus": 0}  # no guarantee while it is archived
    view = current.take_snapshot()
    old = next(each for each in view.snapshot.tenants if each.id == tenant_id)
    new = tuple(_edited(each, limits) if each.id == tenant_id else each for each in view.snapshot.tenants)
    edited = replace(view.snapshot, tenants=new)
    effect = _plan_effect(view, edited, view.policy)
    tenant = next(each for each in new if each.id == tenant_id)
    above = exceeded(edited, tenant)
    sentences = [
        *_excess_sentences(tenant, above),
        *_borrowing_sentences(old, tenant, edited),
        *_effect_sentences(effect, edited),
        *_idle_limit_sentences(tenant, edited),
    ]
    return _represent(effect, edited, above, sentences)


def policy_effect(new: Policy) -> dict[str, Any]:
    """Return the effect of another policy."""
    view = current.take_snapshot()
    edited = replace(view.snapshot, tenants=load_tenants(new))
    effect = _plan_effect(view, edited, new)
    return _represent(effect, edited, [], list(_effect_sentences(effect, edited)))


def _plan_effect(view: Present, edited: Snapshot, new: Policy) -> Effect | None:
    """Return the effect; None if too many jobs are pending to plan twice within a request, or if there is no answer.
    That does not block the edit."""
    if len(edited.jobs) > current.MAX_JOBS:
        return None
    try:
        return ask(view, questions.changed, edited.tenants, new)
    except Problem as problem:
        logger.warning("the effect of an edit is unknown: %s", problem)
        return None


def _effect_sentences(effect: Effect | None, snapshot: Snapshot) -> list[str]:
    if effect is None and len(snapshot.jobs) > current.MAX_JOBS:
        return [f"{len(snapshot.jobs)} jobs wait, too many to compute which would start or stop"]
    if effect is None:
        return ["which jobs would start or stop could not be computed now"]
    return list(_affected_sentences(effect, snapshot))


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


def _represent(
    effect: Effect | None, snapshot: Snapshot, above: Sequence[Excess], sentences: list[str]
) -> dict[str, Any]:
    counted = effect or Effect((), (), (), ())
    return {
        "running_over": [
            {"dimension": excess.dimension.name, "in_use": excess.in_use, "limit": excess.limit, "users": excess.users}
            for excess in above
        ],
        "would_start": _jobs(counted.starts, snapshot),
        "would_wait": _jobs(counted.waits, snapshot),
        "would_never_start": _jobs(counted.impossible, snapshot),
        "would_stop": _jobs(counted.stops, snapshot),
        "sentences": [fix_plurals(sentence) for sentence in sentences] or [NO_EFFECT],
        # Effects that the caller should see before the edit.
        "contradicts": bool(above or counted.impossible or counted.stops or effect is None),
    }


def _jobs(ids: Sequence[int], snapshot: Snapshot) -> dict[str, Any]:
    named = list(dict.fromkeys(public_id(job_id) for job_id in ids))
    return {"jobs": len(ids), "gpus": _gpus(ids, snapshot), "ids": named[:MAX_NAMED]}


def _gpus(ids: Collection[int], snapshot: Snapshot) -> int:
    job_ids = set(ids)
    waiting = sum(job.request.gpu_count for job in snapshot.jobs if job.id in job_ids)
    return waiting + sum(job.request.gpu_count for job in snapshot.running if job.job_id in job_ids)


def _excess_sentences(tenant: Tenant, above: Sequence[Excess]) -> Iterator[str]:
    for excess in above:
        name = excess.dimension.name
        if excess.users:
            subject = f"{excess.users} users of tenant {tenant.name} hold" if excess.users > 1 else "a user holds"
            yield (
                f"{subject} up to {excess.in_use} GPUs, more than the limit of {excess.limit} per user: their running"
                " jobs continue, and they start no new GPU jobs until they hold less"
            )
        else:
            yield (
                f"tenant {tenant.name} uses {excess.in_use} {name}, more than the limit of {excess.limit}:"
                f" its running jobs continue, and it starts no new jobs that need {name} until it uses less"
            )


def _borrowing_sentences(old: Tenant, tenant: Tenant, snapshot: Snapshot) -> Iterator[str]:
    """Describe the GPUs beyond the guarantee, if the edit changes their number."""
    gpus_held = sum(job.request.gpu_count for job in snapshot.running if job.tenant_id == tenant.id)
    was, now = (max(0, gpus_held - each.guaranteed_gpus) for each in (old, tenant))
    if now == was:
        return
    borrowed = f"{now} of the {gpus_held} GPUs that it holds would be borrowed ({was} now)"
    if now > was:
        yield f"{borrowed}: no job is stopped by that, but tenants below their guarantee can reclaim them"
    else:
        yield f"{borrowed}: fewer can be reclaimed"


def _affected_sentences(effect: Effect, snapshot: Snapshot) -> Iterator[str]:
    for ids, consequence in (
        (effect.starts, "would start now that otherwise wait"),
        (effect.waits, "would wait that otherwise start now"),
        (effect.impossible, "would exceed a limit by themselves, and could never start"),
        (effect.stops, "would be stopped for others"),
    ):
        if ids:
            kind = "running" if ids is effect.stops else "waiting"
            yield f"{len(ids)} {kind} jobs ({_gpus(ids, snapshot)} GPUs) {consequence}"


def _idle_limit_sentences(tenant: Tenant, snapshot: Snapshot) -> Iterator[str]:
    """Describe limits without effect on the present cluster."""
    devices = [device for node in snapshot.nodes for device in node.devices]
    guaranteed = sum(other.guaranteed_gpus for other in snapshot.tenants)
    if tenant.guaranteed_gpus and guaranteed > len(devices):
        yield (
            f"the guarantees of all tenants are {guaranteed} GPUs together, and there are {len(devices)}:"
            " not all of them can be met at once"
        )
    if tenant.max_gpus is not None and tenant.max_gpus >= len(devices) > 0:
        yield f"the limit of {tenant.max_gpus} GPUs has no effect yet: there are {len(devices)}"
    for model, _ in tenant.max_gpus_by_model:
        if not any(is_model(model, device.model) for device in devices):
            yield f"the limit for {model} has no effect yet: no GPU is of that model"
