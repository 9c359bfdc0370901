"""Gives every job that a cycle left pending its one reason, worked out once for all jobs that it holds for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from scheduling.engine.board.shapes import Shape
from scheduling.engine.explain.explain import (
    BEHIND,
    ClusterState,
    blocked,
    count_in_words,
    name_promised_job,
    over_quota,
    promised_to_other,
)
from scheduling.engine.explain.feasibility import beyond_part, bounds_of, over_limit, too_large
from scheduling.engine.limits.accounts import ExceededLimit
from scheduling.engine.model import Job, PendingGroup, PendingReason, Promise, Tenant
from scheduling.engine.placement.placement import place


class RefusedGroup(NamedTuple):
    """Jobs that stay behind for one cause: a limit, or (None) no room; and what waited for room ahead of them. They are
    alike (see `ordering.Bucket`), `job` being one of them."""

    job: Job
    job_ids: tuple[int, ...]
    group: int
    block: ExceededLimit | None
    jobs_ahead: int
    gpus_ahead: int


class CycleOutcome(NamedTuple):
    """The cluster after the cycle: what reasons are told from. `promised`: the job of the reservation."""

    scene: ClusterState
    shapes: Sequence[Shape]
    tenants: Mapping[int, Tenant]
    promised: Job | None
    reservation: Promise | None


def pending_reasons(
    outcome: CycleOutcome, refused: Sequence[RefusedGroup], told: Mapping[int, PendingReason]
) -> Iterator[PendingGroup]:
    """Each job is in one. `told`: what is known of single jobs already; it goes before what holds for all alike."""
    by_group: dict[int, PendingReason] = {}
    for job_id, verdict in told.items():
        yield PendingGroup((job_id,), *verdict)
    for each in refused:
        if each.block is not None:
            verdict = _limit_verdict(outcome, each.job, each.block)
        else:
            if each.group not in by_group:
                by_group[each.group] = _room_verdict(outcome, each.group)
            verdict = _for_these(outcome, by_group[each.group], each)
        ids = each.job_ids
        if told and not told.keys().isdisjoint(ids):
            ids = tuple(job_id for job_id in ids if job_id not in told)
        if ids:
            yield PendingGroup(ids, verdict.code, verdict.evidence)


def _for_these(outcome: CycleOutcome, verdict: PendingReason, refused: RefusedGroup) -> PendingReason:
    if verdict.code in BEHIND:
        # Room that others took in this cycle: they stood before it, too.
        jobs, gpus = outcome.scene.placed if verdict.code == "priority" else (0, 0)
        ahead = {
            "jobs_ahead": count_in_words(refused.jobs_ahead + jobs),
            "gpus_ahead": count_in_words(refused.gpus_ahead + gpus),
        }
        return PendingReason(verdict.code, {**verdict.evidence, **ahead})
    if verdict.code == "reserved" and outcome.promised is not None:
        is_own = outcome.promised.tenant_id == refused.job.tenant_id
        return name_promised_job(verdict, outcome.promised.id, is_own=is_own)
    if verdict.code == "never_fits":
        return _never_fits(outcome, refused.job) or verdict
    return verdict


def _limit_verdict(outcome: CycleOutcome, job: Job, block: ExceededLimit) -> PendingReason:
    tenant, inventory, policy = outcome.tenants[job.tenant_id], outcome.scene.inventory, outcome.scene.policy
    return (
        over_limit(job.request, tenant, inventory, policy)
        or beyond_part(job.request, tenant, inventory, policy, is_online=job.is_online)
        or over_quota(tenant, block)
    )


def _never_fits(outcome: CycleOutcome, job: Job) -> PendingReason | None:
    """The same as at submit: the largest possible depends on the limits of the job's tenant, too."""
    tenant, inventory, policy = outcome.tenants[job.tenant_id], outcome.scene.inventory, outcome.scene.policy
    bounds = bounds_of(tenant, inventory, policy, is_online=job.is_online)
    return too_large(job.request, inventory, policy, bounds)


def _room_verdict(outcome: CycleOutcome, group: int) -> PendingReason:
    shape, scene = outcome.shapes[group], outcome.scene
    if outcome.reservation is not None and place(scene.board, shape) is not None:
        return promised_to_other(scene.board, shape, outcome.reservation)
    return blocked(scene, shape)
