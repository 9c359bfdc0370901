"""A72: bookings over whole runs: jobs arrive, run, are stopped and preempted, and bookings start and end."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scheduling.engine.forward import ended, started, stopping
from scheduling.engine.model import Booking, DeviceHold, Job, Node, Plan, Policy, RankPlacement, Snapshot, Tenant
from scheduling.engine.planner import plan
from scheduling.engine.policies import LIVE_POLICIES
from tests.engine import states
from tests.engine.scenario import NOW, node
from tests.engine.test_invariants import in_small_states

STEP_SECONDS, STEPS = 60.0, 40


def runs() -> st.SearchStrategy[tuple[Snapshot, Policy, Random]]:
    return st.integers(0, 2**40).map(_run)


def _run(seed: int) -> tuple[Snapshot, Policy, Random]:
    """Make an empty cluster with bookings that do not overlap, half of them recurring, and a policy that preempts."""
    rng = Random(seed)
    nodes = tuple(node(id, gpus=rng.choice([1, 2, 4]), cpu=16) for id in (1, 2))
    tenants = tuple(Tenant(id, f"t{id}", guaranteed_gpus=rng.choice([0, 2])) for id in (1, 2, 3))
    bookings: list[Booking] = []
    for _ in range(rng.randint(1, 4)):
        first, lasts, rank = NOW + 60 * rng.randint(0, 25), 60 * rng.randint(2, 10), _rank(rng, nodes)
        tenant_id = rng.choice([1, 2])
        for starts_at in (first, first + 900.0) if rng.random() < 0.5 else (first,):
            booking = Booking(len(bookings) + 1, tenant_id, starts_at, starts_at + lasts, (rank,))
            if not any(_overlap(booking, other) for other in bookings):
                bookings.append(booking)
    policy = Policy(
        name=rng.choice(LIVE_POLICIES),
        min_runtime_seconds=60,
        preemption_delay_seconds=0,
        unlimited_runtime_seconds=1200,
    )
    return Snapshot((), (), nodes, tenants, bookings=tuple(bookings)), policy, rng


def _rank(rng: Random, nodes: tuple[Node, ...]) -> RankPlacement:
    booked = rng.choice(nodes)
    devices = rng.sample(booked.devices, rng.randint(1, len(booked.devices)))
    holds = tuple(DeviceHold(device.id) for device in sorted(devices, key=lambda device: device.id))
    return RankPlacement(0, booked.id, 2000 * len(holds), 100, holds)


def _overlap(left: Booking, right: Booking) -> bool:
    return left.starts_at < right.ends_at and right.starts_at < left.ends_at and bool(_booked(left) & _booked(right))


def _booked(booking: Booking) -> set[int]:
    return {hold.device_id for rank in booking.ranks for hold in rank.holds}


def _arrivals(rng: Random, number: int, at: float) -> tuple[Job, ...]:
    return tuple(
        replace(
            states._job(rng, number * 10 + n, is_plain=True),
            tenant_id=rng.choice([1, 2, 3]),
            queued_at=at,
            eligible_at=0.0,
            max_runtime_seconds=rng.choice([None, 60, 240, 900]),
        )
        for n in range(rng.choice([0, 1, 1, 2]))
    )


@in_small_states
@given(runs())
def test_bookings_hold_over_a_run(run: tuple[Snapshot, Policy, Random]) -> None:
    """A72: at each moment no job of others holds a booked device, what is booked is free or used by its owner, jobs
    inside are never preempted, and nothing holds more than there is."""
    snapshot, policy, rng = run
    ends: dict[int, float] = {}
    for step in range(STEPS):
        now = NOW + step * STEP_SECONDS
        snapshot = _end(snapshot, ends, now)
        open_bookings = tuple(booking for booking in snapshot.bookings if booking.ends_at > now)
        snapshot = replace(snapshot, bookings=open_bookings, jobs=(*snapshot.jobs, *_arrivals(rng, 100 + step, now)))
        _check(snapshot, now)
        new_plan = plan(snapshot, policy, now)
        inside = {job.job_id for job in snapshot.running if job.booking_id is not None}
        assert not inside & {victim for preemption in new_plan.preemptions for victim in preemption.victims}
        limits = {job.id: (job.max_runtime_seconds, job.grace_seconds) for job in snapshot.jobs}
        for placement in new_plan.placements:
            limit, grace = limits[placement.job_id]
            # A job takes as long as it may: up to its limit, and then all of its grace period; or it ends early.
            longest = 5000.0 if limit is None else limit + grace
            ends[placement.job_id] = now + (longest if rng.random() < 0.7 else rng.random() * longest)
        for preemption in new_plan.preemptions:
            for victim in preemption.victims:
                ends[victim] = min(ends[victim], now + 30.0)
        snapshot = _after(snapshot, new_plan, now)
        _check(snapshot, now)


def _after(snapshot: Snapshot, new_plan: Plan, now: float) -> Snapshot:
    after = stopping(started(snapshot, new_plan.placements, now), new_plan.preemptions, new_plan.claims)
    return replace(after, reserved_job_id=new_plan.reservation.job_id if new_plan.reservation else None)


def _end(snapshot: Snapshot, ends: dict[int, float], now: float) -> Snapshot:
    """End the jobs that are due, and those whose booking ends: these wait again, and so do preempted ones."""
    stops = {booking.id: booking.ends_at for booking in snapshot.bookings}
    stopped = {job.job_id for job in snapshot.running if stops.get(job.booking_id or 0, now + 1) <= now}
    over = {job_id for job_id, at in ends.items() if at <= now} | stopped
    preempted = {job.job_id for job in snapshot.running if job.is_stopping}
    for job_id in over:
        ends.pop(job_id, None)
    return ended(snapshot, over, requeued=(stopped | preempted) & over)


def _check(snapshot: Snapshot, now: float) -> None:
    active = [booking for booking in snapshot.bookings if booking.starts_at <= now < booking.ends_at]
    owners = {device_id: booking.id for booking in active for device_id in _booked(booking)}
    for job in snapshot.running:
        for rank in job.ranks:
            for hold in rank.holds:
                assert owners.get(hold.device_id, job.booking_id) == job.booking_id, (job, now)
    for each_node in snapshot.nodes:
        reserved = 0
        for booking in active:
            part = sum(rank.cpu_milli for rank in booking.ranks if rank.node_id == each_node.id)
            inside = [job for job in snapshot.running if job.booking_id == booking.id]
            reserved += max(part - _cpu(each_node.id, [rank for job in inside for rank in job.ranks]), 0)
        assert each_node.cpu_milli_free >= reserved, (each_node, now)


def _cpu(node_id: int, ranks: list[RankPlacement]) -> int:
    return sum(rank.cpu_milli for rank in ranks if rank.node_id == node_id)
