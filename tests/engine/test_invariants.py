"""Invariants of every state, checked against the slow oracle on small random ones."""

import os
from collections import Counter
from dataclasses import replace
from math import inf
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.protocol import reasons
from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.explain.feasibility import why_never_fits
from scheduling.engine.model import Job, Plan, Policy, RankPlacement, Snapshot
from scheduling.engine.placement.placement import can_place, place
from tests.engine import oracle, states
from tests.engine.scenario import NOW, advance, decide, occupy, started

in_small_states = settings(
    max_examples=int(os.environ.get("ENGINE_EXAMPLES", "50")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@in_small_states
@given(states.snapshots(), states.policies)
def test_no_legal_placement_is_overlooked(snapshot: Snapshot, policy: Policy) -> None:
    """A10: what waits has no legal placement, or only such as would delay the one reservation."""
    new_plan = decide(snapshot, policy)
    after = advance(snapshot, new_plan)
    is_kept = {entry.job_id: "promised_to" in entry.evidence for entry in new_plan.reasons}
    for job in after.jobs:
        if job.eligible_at > NOW:
            continue
        for ranks in oracle.legal_placements(job.request, after.nodes, policy, after.running):
            if mixes_limited_models(after, job, ranks):
                continue  # it is not spread over models to use up what the limit of one leaves
            if oracle.is_within_limits(after, job, ranks) and oracle.is_within_parts(after, policy, job, lending=False):
                assert is_kept[job.id] or delays(after, new_plan, policy, job, ranks), (job, ranks)


@in_small_states
@given(states.snapshots(), states.policies)
def test_every_placement_is_complete_and_legal(snapshot: Snapshot, policy: Policy) -> None:
    """A11, A18: each one, in the order in which they were decided, is legal for the oracle and within the limits."""
    new_plan = decide(snapshot, policy)
    for placement in new_plan.placements:
        (job,) = [waiting_job for waiting_job in snapshot.jobs if waiting_job.id == placement.job_id]
        assert sum(len(rank.holds) for rank in placement.ranks) == job.request.gpu_count
        assert [rank.rank for rank in placement.ranks] == list(range(job.request.ranks or len(placement.ranks)))
        assert oracle.is_legal(job.request, placement.ranks, snapshot.nodes, policy, snapshot.running)
        assert oracle.is_within_limits(snapshot, job, placement.ranks)
        assert oracle.is_within_parts(snapshot, policy, job, lending=True)
        snapshot = advance(snapshot, Plan((placement,)))


@in_small_states
@given(states.snapshots(), states.policies)
def test_a_job_starts_or_has_one_reason(snapshot: Snapshot, policy: Policy) -> None:
    """A20: exactly one of both for every job, and each reason reads without gaps."""
    new_plan = decide(snapshot, policy)
    result = Counter([*started(new_plan), *[entry.job_id for entry in new_plan.reasons]])
    assert result == Counter(job.id for job in snapshot.jobs)
    for entry in new_plan.reasons:
        assert "?" not in reasons.sentence(entry.code, entry.evidence)
        assert entry.code in set(reasons.Pending)


@in_small_states
@given(states.snapshots(), states.policies)
def test_request_has_a_place_exactly_when_it_can_be_placed(snapshot: Snapshot, policy: Policy) -> None:
    """The short answer, which rates no node, is the one of the search for the best node."""
    board = Board(snapshot.nodes, running=snapshot.running)
    for job in snapshot.jobs:
        shape = Shape(job.request, board, policy)
        ranks = place(board, shape)
        assert can_place(board, shape) == (ranks is not None)
        if ranks is not None:
            board.allocate(ranks)


@in_small_states
@given(states.snapshots(), st.integers(0, 100))
def test_plan_does_not_depend_on_the_order_of_input(snapshot: Snapshot, seed: int) -> None:
    """A21"""
    rng = Random(seed)
    shuffled = Snapshot(
        tuple(rng.sample(snapshot.jobs, len(snapshot.jobs))),
        tuple(rng.sample(snapshot.running, len(snapshot.running))),
        tuple(replace(node, devices=node.devices[::-1]) for node in rng.sample(snapshot.nodes, len(snapshot.nodes))),
        snapshot.tenants[::-1],
        snapshot.reserved_job_id,
    )
    assert repr(decide(shuffled)) == repr(decide(snapshot))


@in_small_states
@given(states.snapshots(), states.policies)
def test_promise_never_moves_later(snapshot: Snapshot, policy: Policy) -> None:
    """A12: once promised, a job starts by then, whatever else starts; seen again a minute later."""
    new_plan = decide(snapshot, policy)
    if new_plan.reservation is None:
        return
    after = advance(snapshot, new_plan)
    (holder,) = [job for job in after.jobs if job.id == new_plan.reservation.job_id]
    if any(job.tenant_id == holder.tenant_id and job.priority > holder.priority for job in after.jobs):
        return
    second_plan = decide(replace(after, jobs=(holder,)), policy, NOW)
    assert holder.id in started(second_plan) or (
        second_plan.reservation and second_plan.reservation.at <= new_plan.reservation.at
    )


@in_small_states
@given(states.snapshots())
def test_feasibility_agrees_with_the_plan_on_the_empty_cluster(snapshot: Snapshot) -> None:
    """A04: what is refused at submit never starts, and what is not starts alone on the empty cluster in service."""
    nodes = tuple(
        replace(
            node,
            is_open=True,
            cpu_milli_free=node.cpu_milli,
            memory_mb_free=node.memory_mb,
            devices=tuple(
                replace(device, is_healthy=True, is_slowed=False, exclusive=False, shared_mb=0)
                for device in node.devices
            ),
        )
        for node in snapshot.nodes
    )
    for job in snapshot.jobs:
        (tenant,) = [tenant for tenant in snapshot.tenants if tenant.id == job.tenant_id]
        alone = Snapshot((replace(job, eligible_at=0.0),), (), nodes, snapshot.tenants)
        new_plan = decide(alone)
        verdict = why_never_fits(job.request, tenant, snapshot.nodes)
        if verdict is not None:
            assert [(entry.code, entry.evidence) for entry in new_plan.reasons] == [(verdict.code, verdict.evidence)]
        elif new_plan.reasons:
            # Not impossible for ever: a node that matches may yet join, or has not; and mixed devices may be too dear.
            assert new_plan.reasons[0].code in ("constraint", "taint", "quota_wait")


def mixes_limited_models(after: Snapshot, job: Job, ranks: tuple[RankPlacement, ...]) -> bool:
    (tenant,) = [tenant for tenant in after.tenants if tenant.id == job.tenant_id]
    return bool(tenant.max_gpus_by_model) and len(set(oracle.models(after, ranks))) > 1


def delays(after: Snapshot, new_plan: Plan, policy: Policy, job: Job, ranks: tuple[RankPlacement, ...]) -> bool:
    """With these ranks taken too, could the promised job not start at its time in its place?"""
    promise = new_plan.reservation
    if promise is None or promise.job_id == job.id:
        return False
    ends_at = inf if job.max_runtime_seconds is None else NOW + job.max_runtime_seconds
    if ends_at <= promise.at:
        return False
    (holder,) = [waiting_job for waiting_job in after.jobs if waiting_job.id == promise.job_id]
    ended = [
        running_job.job_id
        for running_job in after.running
        if _bound(running_job.ends_by, running_job.started_at, policy) <= promise.at
    ]
    future = oracle.without(after, ended)
    nodes = tuple(occupy(node, ranks) for node in future.nodes)
    joined = {rank.node_id for rank in ranks} & set(promise.node_ids)
    if joined and job.request.apart and job.request.apart == holder.request.apart:
        return True
    return not oracle.is_legal(holder.request, promise.ranks, nodes, policy, future.running)


def _bound(ends_by: float | None, started_at: float, policy: Policy) -> float:
    return started_at + policy.unlimited_runtime_seconds if ends_by is None else ends_by
