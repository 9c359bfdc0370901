"""Assigns every job that a cycle left pending its one reason, computed once for all jobs that it holds for."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from scheduling.engine.board.shapes import Shape
from scheduling.engine.explain.booked import latest_end_of, name_booking, reserved_soon
from scheduling.engine.explain.explain import (
    QUEUE_REASONS,
    ClusterState,
    blocked,
    count_in_words,
    name_promised_job,
    over_quota,
    promised_to_other,
)
from scheduling.engine.explain.feasibility import (
    bounds_of,
    exceeds_online_capacity,
    over_limit,
    over_model_limits,
    too_large,
)
from scheduling.engine.limits.accounts import ExceededLimit
from scheduling.engine.model import Job, PendingGroup, PendingReason, Promise, Tenant
from scheduling.engine.placement.placement import can_place


class RefusedGroup(NamedTuple):
    """Identical jobs (see `ordering.JobGroup`) that stay pending for one cause: a limit, or (None) no capacity.

    `job`: one of them; `jobs_ahead`, `gpus_ahead`: jobs that waited for capacity ahead of them.
    """

    job: Job
    job_ids: tuple[int, ...]
    group: int
    block: ExceededLimit | None
    jobs_ahead: int
    gpus_ahead: int


class CycleOutcome(NamedTuple):
    """The cluster after the cycle, from which reasons are derived. `promised`: the job of the promise."""

    cluster: ClusterState
    shapes: Sequence[Shape]
    tenants: Mapping[int, Tenant]
    promised: Job | None
    promise: Promise | None


def pending_reasons(
    outcome: CycleOutcome, refused: Sequence[RefusedGroup], job_reasons: Mapping[int, PendingReason]
) -> Iterator[PendingGroup]:
    """Yield the reasons of the pending jobs; each job is in one group.

    `job_reasons`: reasons of single jobs, which go before those of their groups.
    """
    by_group: dict[tuple[int, int], PendingReason] = {}
    full: dict[int, bool] = {}
    for job_id, verdict in job_reasons.items():
        yield PendingGroup((job_id,), *verdict)
    for refused_group in refused:
        if refused_group.block is not None:
            verdict = _limit_verdict(outcome, refused_group.job, refused_group.block)
        elif (over_models := _over_models(outcome, refused_group.job)) is not None:
            verdict = over_models
        else:
            number = refused_group.group
            if number not in full:
                full[number] = _is_full(outcome, number)
            key = number, 0 if full[number] else _level(outcome, refused_group.job)
            if key not in by_group:
                by_group[key] = _capacity_verdict(outcome, refused_group, is_full=full[number])
            verdict = _for_these(outcome, by_group[key], refused_group)
        ids = refused_group.job_ids
        # Only the job that stands for its group was served, so no other has a reason of its own.
        if refused_group.job.id in job_reasons:
            ids = tuple(job_id for job_id in ids if job_id not in job_reasons)
        if ids:
            yield PendingGroup(ids, verdict.code, verdict.evidence)


def _for_these(outcome: CycleOutcome, verdict: PendingReason, refused: RefusedGroup) -> PendingReason:
    if verdict.code in QUEUE_REASONS:
        # Jobs that start in this cycle stood before it, too.
        jobs, gpus = outcome.cluster.placed if verdict.code == "priority" else (0, 0)
        ahead = {
            "jobs_ahead": count_in_words(refused.jobs_ahead + jobs),
            "gpus_ahead": count_in_words(refused.gpus_ahead + gpus),
        }
        return PendingReason(verdict.code, {**verdict.evidence, **ahead})
    if verdict.code == "reserved" and outcome.promised is not None:
        is_own = outcome.promised.tenant_id == refused.job.tenant_id
        return name_promised_job(verdict, outcome.promised.id, is_own=is_own)
    if verdict.code == "reserved_soon" and outcome.cluster.bookings is not None:
        return name_booking(outcome.cluster.bookings.by_id, verdict, refused.job.tenant_id)
    if verdict.code == "never_fits":
        return _never_fits(outcome, refused.job) or verdict
    return verdict


def _limit_verdict(outcome: CycleOutcome, job: Job, block: ExceededLimit) -> PendingReason:
    tenant, inventory, policy = outcome.tenants[job.tenant_id], outcome.cluster.inventory, outcome.cluster.policy
    return (
        over_limit(job.request, tenant, inventory, policy)
        or exceeds_online_capacity(job.request, tenant, inventory, policy, is_online=job.is_online)
        or over_quota(tenant, block)
    )


def _over_models(outcome: CycleOutcome, job: Job) -> PendingReason | None:
    """Return the reason of a job that lacks capacity, but exceeds the limits per model of its tenant together."""
    tenant = outcome.tenants[job.tenant_id]
    return over_model_limits(job.request, tenant, outcome.cluster.inventory, outcome.cluster.policy)


def _never_fits(outcome: CycleOutcome, job: Job) -> PendingReason | None:
    """Return the same reason as at submit: the largest possible request depends on the tenant's limits, too."""
    tenant, inventory, policy = outcome.tenants[job.tenant_id], outcome.cluster.inventory, outcome.cluster.policy
    bounds = bounds_of(tenant, inventory, policy, is_online=job.is_online)
    return too_large(job.request, inventory, policy, bounds)


def _is_full(outcome: CycleOutcome, number: int) -> bool:
    """Return whether a request does not fit now, however short the job is: all its jobs wait for the same reason then.

    False if it does not matter, as there is neither a promise nor a booking.
    """
    cluster = outcome.cluster
    if outcome.promise is None and cluster.bookings is None:
        return False
    return not can_place(cluster.board, outcome.shapes[number])


def _level(outcome: CycleOutcome, job: Job) -> int:
    """Return the level of a job among the bookings (see `Bookings`): jobs of one level wait for the same reason."""
    bookings = outcome.cluster.bookings
    return 0 if bookings is None else bookings.level(latest_end_of(bookings, job))


def _capacity_verdict(outcome: CycleOutcome, refused: RefusedGroup, *, is_full: bool) -> PendingReason:
    shape, cluster = outcome.shapes[refused.group], outcome.cluster
    if outcome.promise is not None and not is_full:
        board = cluster.board
        if cluster.bookings is not None:
            board = cluster.bookings.board(board, latest_end_of(cluster.bookings, refused.job))
        if board is cluster.board or can_place(board, shape):
            return promised_to_other(board, shape, outcome.promise)
    return reserved_soon(cluster, shape, refused.job, is_full=is_full) or blocked(cluster, shape)
