"""A72: bookings in every small state: none is entered, none is overlooked, and the promise holds."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given

from gpusched.protocol import reasons
from scheduling.engine.board.board import Board
from scheduling.engine.bookings import level_boards
from scheduling.engine.bookings.bookings import Bookings
from scheduling.engine.bookings.level_boards import LevelBoards
from scheduling.engine.explain.explain import timestamp
from scheduling.engine.model import Booking, DeviceHold, Job, Plan, Policy, RankPlacement, Request, Snapshot, Tenant
from scheduling.engine.whatif.estimate import estimates
from tests.engine import oracle, states
from tests.engine.booked_states import booked_snapshots, is_honoured, is_legal_beside, is_legal_inside
from tests.engine.scenario import (
    NOW,
    advance,
    ask,
    cluster,
    decide,
    devices_of,
    gpu,
    job,
    node,
    reason,
    running_on,
    started,
)
from tests.engine.test_invariants import delays, in_small_states, mixes_limited_models


@in_small_states
@given(booked_snapshots(), states.policies)
def test_every_placement_is_legal_beside_or_inside_bookings(snapshot: Snapshot, policy: Policy) -> None:
    """A72: each one, in the order of the decisions; and all bookings can still be honoured together."""
    bookings = {booking.id: booking for booking in snapshot.bookings}
    for placement in decide(snapshot, policy).placements:
        (job,) = [waiting_job for waiting_job in snapshot.jobs if waiting_job.id == placement.job_id]
        booking = bookings.get(placement.booking_id or 0)
        if booking is not None and booking.is_hard:
            assert is_legal_inside(snapshot, policy, job, placement.ranks, booking)
        else:
            assert is_legal_beside(snapshot, policy, job, placement.ranks)
            assert job.booking_id is None
        assert oracle.is_within_limits(snapshot, job, placement.ranks)
        snapshot = advance(snapshot, Plan((placement,)))
        assert is_honoured(snapshot, NOW)


@in_small_states
@given(booked_snapshots(), states.policies)
def test_no_legal_placement_is_overlooked_beside_bookings(snapshot: Snapshot, policy: Policy) -> None:
    """A10, A72: what waits fits in no booking of its tenant, and beside the bookings only where it would delay the
    promise."""
    new_plan = decide(snapshot, policy)
    after = advance(snapshot, new_plan)
    waits = {entry.job_id: entry for entry in new_plan.reasons}
    nominated = {nomination.job_id for nomination in new_plan.claims}
    for waiting_job in after.jobs:
        if waiting_job.eligible_at > NOW or waiting_job.id in nominated:
            continue
        is_kept = "promised_to" in waits[waiting_job.id].evidence
        for ranks in oracle.legal_placements(waiting_job.request, after.nodes, policy, after.running):
            if mixes_limited_models(after, waiting_job, ranks) or is_kept:
                continue
            if not (
                oracle.is_within_limits(after, waiting_job, ranks)
                and oracle.is_within_parts(after, policy, waiting_job, lending=False)
            ):
                continue
            for booking in after.bookings:
                if booking.is_hard:
                    assert not is_legal_inside(after, policy, waiting_job, ranks, booking), (
                        waiting_job,
                        ranks,
                        booking,
                    )
            if waiting_job.booking_id is None and is_legal_beside(after, policy, waiting_job, ranks):
                assert delays(after, new_plan, policy, waiting_job, ranks), (waiting_job, ranks)


@in_small_states
@given(booked_snapshots(), states.policies)
def test_a_job_starts_or_has_one_reason_beside_bookings(snapshot: Snapshot, policy: Policy) -> None:
    """A20"""
    new_plan = decide(snapshot, policy)
    assert sorted([*started(new_plan), *[entry.job_id for entry in new_plan.reasons]]) == sorted(
        job.id for job in snapshot.jobs
    )
    for entry in new_plan.reasons:
        assert "?" not in reasons.sentence(entry.code, entry.evidence)
        assert entry.code in set(reasons.Pending)


@in_small_states
@given(booked_snapshots(), states.policies)
def test_promise_never_moves_later_beside_bookings(snapshot: Snapshot, policy: Policy) -> None:
    """A12, A72: once promised, a job starts by then, whatever else starts and whatever is booked."""
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


def _booked_node(starts_in: float, *jobs: Job, is_hard: bool = True, gpus: int = 2) -> Snapshot:
    """Make a node with GPUs of which tenant 2 has booked the first for an hour."""
    booking = Booking(
        7, 2, NOW + starts_in, NOW + starts_in + 3600, (RankPlacement(0, 1, 4000, 0, (DeviceHold(100),)),)
    )
    state = cluster(node(1, gpus=gpus), jobs=jobs, tenants=[Tenant(2, "t2")])
    return replace(state, bookings=(replace(booking, is_hard=is_hard),))


def test_owner_is_placed_in_its_booking_first() -> None:
    (placement,) = decide(_booked_node(-60, job(1, tenant=2))).placements
    assert (placement.booking_id, placement.ranks[0].holds) == (7, (DeviceHold(100),))


@pytest.mark.parametrize(("minutes", "starts"), [(9, True), (10, False), (None, False)])
def test_job_starts_before_a_booking_only_if_it_ends_in_time(minutes: int | None, starts: bool) -> None:
    """A72: its limit and its grace period of 30 seconds must be over."""
    new_plan = decide(_booked_node(600, job(1, minutes=minutes), gpus=1))
    assert (started(new_plan) == {1}) is starts


def test_soft_booking_is_avoided_while_other_devices_are_free() -> None:
    new_plan = decide(_booked_node(600, job(1), job(2), is_hard=False))
    assert [devices_of(new_plan, id) for id in (1, 2)] == [[101], [100]]
    (placement,) = decide(_booked_node(-60, job(1, tenant=2), is_hard=False)).placements
    assert (placement.booking_id, placement.ranks[0].holds) == (7, (DeviceHold(100),))


def test_job_that_insists_waits_for_its_booking_and_starts_in_it() -> None:
    insisting = replace(job(1, tenant=2), booking_id=7)
    assert reason(decide(_booked_node(600, insisting)), 1).code == "reservation_pending"
    (placement,) = decide(_booked_node(-600, insisting)).placements
    assert placement.booking_id == 7


@pytest.mark.parametrize("urgent", [ask(1), ask(0, cpu_milli=30_000)])
def test_urgent_job_preempts_no_job_inside_a_booking(urgent: Request) -> None:
    """A72: though the job inside ranks lower, and also takes CPU beside its booking."""
    at_once = Policy(min_runtime_seconds=0, preemption_delay_seconds=0)
    waiting = _booked_node(-60, job(9, tenant=2, priority=100, request=ask(1, cpu_milli=60_000)), gpus=1)
    inside = advance(waiting, decide(waiting))
    state = replace(inside, jobs=(job(1, priority=3000, request=urgent),))
    assert [entry.booking_id for entry in inside.running] == [7]
    assert not decide(state, at_once).preemptions
    assert decide(replace(state, bookings=()), at_once).preemptions


@pytest.mark.parametrize(("minutes", "at"), [(4, NOW + 300), (20, NOW + 4200)])
def test_promise_is_kept_before_a_booking_or_waits_for_its_end(minutes: int, at: float) -> None:
    """A12, A72: the place of the promise is free from its time until the job would end."""
    state = running_on(cluster(node(1, gpus=1), tenants=[Tenant(2, "t2")]), job(9, minutes=5))
    state = replace(state, jobs=(job(1, minutes=minutes),), bookings=_booked_node(600).bookings)
    promise = decide(state).reservation
    assert promise is not None and promise.at == at


def test_soft_booking_changes_no_reason() -> None:
    """A20: the devices that it wants are offered last, on the boards of what-ifs too: no closed node has an H100."""
    wants = ask(gpu_models=("H100",))
    nodes = node(1, [gpu(100, model="NVIDIA H100 PCIe"), gpu(101)]), node(2, gpus=0, is_open=False)
    state = replace(running_on(cluster(*nodes), job(9, request=wants)), jobs=(job(1, request=wants),))
    ranks = (RankPlacement(0, 1, 0, 0, (DeviceHold(101),)),)
    booked = replace(state, bookings=(Booking(1, 1, NOW - 60, NOW + 600, ranks, is_hard=False),))
    assert [reason(decide(one), 1).code for one in (state, booked)] == ["capacity", "capacity"]


def test_estimate_waits_for_the_end_of_a_booking() -> None:
    """A72: an estimate counts bookings, and the owner's job that is stopped with its booking."""
    state = _booked_node(-60, job(1), gpus=1)
    estimate = estimates(state, Policy(), NOW, [1])[1]
    assert estimate.p90_at == NOW - 60 + 3600


@in_small_states
@given(booked_snapshots())
def test_boards_beside_bookings_follow_the_present_board(snapshot: Snapshot) -> None:
    """A72: after every start the board of each level, which shares nodes with the present one, equals a new one."""
    bookings = Bookings(snapshot, NOW, Board(snapshot.nodes, running=snapshot.running))
    ends = [*bookings.starts, inf]
    for at in ends:
        bookings.board(bookings.present, at)
    for placement in decide(replace(snapshot, bookings=())).placements:
        bookings.present.allocate(placement.ranks)
        bookings.count(placement.ranks, NOW, NOW + 600)
        new = LevelBoards(bookings.present, bookings.nodes, bookings.starts, NOW)
        for at in ends:
            shared, separate = bookings.board(bookings.present, at), new.board(bookings.present, at)
            assert (shared.shelves, shared.sharing) == (separate.shelves, separate.sharing)


def test_reason_of_an_unlimited_job_is_found_with_few_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A72: a cluster has hundreds of bookings ahead, and each distinct start has a board."""
    built: list[float] = []
    new_view = level_boards._PresentView.__init__

    def counted(view: level_boards._PresentView, *arguments: Any) -> None:
        built.append(arguments[-1])
        new_view(view, *arguments)

    monkeypatch.setattr(level_boards._PresentView, "__init__", counted)
    state = _booked_node(600, job(1, gpus=1))
    starts = [NOW + 4000 * number for number in range(1, 200)]
    ranks = [(RankPlacement(0, 1, 0, 0, (DeviceHold(100 + (number == 150)),)),) for number in range(1, 200)]
    ahead = [Booking(10 + n, 2, at, at + 3600, rank) for n, (at, rank) in enumerate(zip(starts, ranks, strict=True))]
    waiting = reason(decide(replace(state, bookings=tuple(ahead))), 1)
    assert waiting.code == "reserved_soon"
    assert waiting.evidence["at"] == timestamp(starts[149])
    assert len(built) <= 20


def test_limit_is_free_at_the_end_of_the_booking_that_holds_it() -> None:
    """A12, A72: a job inside a booking is stopped with it, so one that waits for its tenant's limit is promised that
    time, though the other has no time limit."""
    state = replace(_booked_node(-60, job(1, tenant=2)), tenants=(Tenant(2, "t2", max_concurrent_jobs=1),))
    inside = advance(state, decide(state))
    assert [entry.booking_id for entry in inside.running] == [7]
    promise = decide(replace(inside, jobs=(job(2, tenant=2),), reserved_job_id=2)).reservation
    assert promise is not None and promise.at == NOW - 60 + 3600
