"""Random small states with bookings, and a second, slow opinion on what is legal beside and inside them."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from random import Random

from hypothesis import strategies as st

from scheduling.engine.model import Booking, DeviceHold, Job, Policy, RankPlacement, RunningJob, Snapshot
from tests.engine import oracle, states
from tests.engine.scenario import NOW, advance, decide

STARTS = (-3600.0, -60.0, 20.0, 300.0, 3600.0)


def booked_snapshots() -> st.SearchStrategy[Snapshot]:
    return st.integers(0, 2**40).map(lambda seed: booked_snapshot(Random(seed)))


def booked_snapshot(rng: Random) -> Snapshot:
    """Make a state where some jobs run beside bookings and some inside them; all bookings can be honoured together."""
    state = states._snapshot(rng)
    running = tuple(replace(job, grace_seconds=rng.choice([0.0, 30.0])) for job in state.running)
    state = replace(state, running=running)
    for id in range(1, 1 + rng.randint(1, 4)):
        booking = _booking(rng, id, state)
        booked = replace(state, bookings=(*state.bookings, booking))
        if booking.ranks and (not booking.is_hard or is_honoured(booked, NOW)):
            state = booked
    active = [booking for booking in state.bookings if booking.starts_at <= NOW]
    if active and rng.random() < 0.6:
        state = _with_jobs_inside(rng, state, active)
    ids = [booking.id for booking in state.bookings if booking.is_hard]
    jobs = tuple(
        replace(
            job,
            grace_seconds=rng.choice([0.0, 30.0, 30.0]),
            booking_id=rng.choice([*ids, 99]) if ids and rng.random() < 0.15 else None,
        )
        for job in state.jobs
    )
    return replace(state, jobs=jobs)


def _with_jobs_inside(rng: Random, state: Snapshot, active: list[Booking]) -> Snapshot:
    waiting = state.jobs
    jobs = tuple(
        replace(states._job(rng, id, is_plain=True), tenant_id=rng.choice(active).tenant_id, eligible_at=0.0)
        for id in (21, 22)
    )
    before = replace(state, jobs=jobs, reserved_job_id=None)
    return replace(advance(before, decide(before)), jobs=waiting, reserved_job_id=state.reserved_job_id)


def _booking(rng: Random, id: int, state: Snapshot) -> Booking:
    starts_at = NOW + rng.choice(STARTS)
    held = {
        hold.device_id
        for job in state.running
        if latest_end(job) > max(starts_at, NOW)
        for rank in job.ranks
        for hold in rank.holds
    }
    ranks: list[RankPlacement] = []
    for node in rng.sample(state.nodes, min(len(state.nodes), rng.choice([1, 1, 2]))):
        free = [device.id for device in node.devices if device.id not in held]
        chosen = rng.sample(free, min(len(free), rng.choice([1, 1, 2, 3])))
        if chosen:
            holds = tuple(DeviceHold(device_id) for device_id in sorted(chosen))
            cpu_milli = rng.choice([0, 500, 1000]) * len(chosen)
            ranks.append(RankPlacement(len(ranks), node.id, cpu_milli, rng.choice([0, 100]), holds))
    ends_at = max(starts_at, NOW) + rng.choice([60.0, 700.0, 7000.0])
    users = frozenset({1}) if rng.random() < 0.2 else frozenset[int]()
    return Booking(id, rng.choice([1, 2]), starts_at, ends_at, tuple(ranks), users, rng.random() < 0.8)


def latest_end(job: RunningJob) -> float:
    return inf if job.ends_by is None else max(job.ends_by + (0 if job.is_stopping else job.grace_seconds), NOW)


def is_honoured(snapshot: Snapshot, now: float) -> bool:
    """Return whether all hard bookings, and what runs beside them, fit together from now on: no device twice at once,
    no more CPU and memory than there is."""
    bookings = [booking for booking in snapshot.bookings if booking.is_hard and booking.ends_at > now]
    return all(
        _fits_at(snapshot, at, bookings, [(latest_end(job), job) for job in snapshot.running])
        for at in {now, *[booking.starts_at for booking in bookings if booking.starts_at > now]}
    )


def _fits_at(
    snapshot: Snapshot, at: float, bookings: Iterable[Booking], running: Iterable[tuple[float, RunningJob]]
) -> bool:
    """Return whether the bookings that are active at a moment, and the jobs that may still run then, fit together.

    What runs inside a booking counts once: the booking's amount, or that of its jobs if it is larger."""
    active = {booking.id: booking for booking in bookings if booking.starts_at <= at < booking.ends_at}
    known = {booking.id for booking in bookings}
    live = [job for end, job in running if end > at and (job.booking_id not in known or job.booking_id in active)]
    for node in snapshot.nodes:
        total = [
            free + sum(getattr(rank, name) for job in snapshot.running for rank in job.ranks if rank.node_id == node.id)
            for name, free in (("cpu_milli", node.cpu_milli_free), ("memory_mb", node.memory_mb_free))
        ]
        holders: list[int] = []
        for index, name in enumerate(("cpu_milli", "memory_mb")):
            for booking in active.values():
                inside = _amount(node.id, name, [job for job in live if job.booking_id == booking.id])
                total[index] -= max(_amount(node.id, name, [booking]), inside)
            total[index] -= _amount(node.id, name, [job for job in live if job.booking_id not in active])
        for booking in active.values():
            holders += _devices(node.id, [booking])
        holders += set(_devices(node.id, [job for job in live if job.booking_id not in active]))
        if min(total) < 0 or len(set(holders)) < len(holders):
            return False
    return True


def _amount(node_id: int, name: str, holders: Iterable[Booking | RunningJob]) -> int:
    return sum(getattr(rank, name) for holder in holders for rank in holder.ranks if rank.node_id == node_id)


def _devices(node_id: int, holders: Iterable[Booking | RunningJob]) -> list[int]:
    return [
        hold.device_id for holder in holders for rank in holder.ranks if rank.node_id == node_id for hold in rank.holds
    ]


def is_legal_beside(snapshot: Snapshot, policy: Policy, job: Job, ranks: tuple[RankPlacement, ...]) -> bool:
    """Return whether a job that does not use a booking may start there: until its latest end no hard booking has one of
    its devices, and together with it everything fits at every moment."""
    if not oracle.is_legal(job.request, ranks, snapshot.nodes, policy, snapshot.running):
        return False
    end = inf if job.max_runtime_seconds is None else NOW + job.max_runtime_seconds + job.grace_seconds
    hard = [booking for booking in snapshot.bookings if booking.is_hard and booking.ends_at > NOW]
    taken = {hold.device_id for rank in ranks for hold in rank.holds}
    for booking in hard:
        if booking.starts_at < end and taken & {hold.device_id for rank in booking.ranks for hold in rank.holds}:
            return False
    return _fits_with(snapshot, job, ranks, end, None)


def is_legal_inside(
    snapshot: Snapshot, policy: Policy, job: Job, ranks: tuple[RankPlacement, ...], booking: Booking
) -> bool:
    if job.tenant_id != booking.tenant_id or (booking.user_ids and job.user_id not in booking.user_ids):
        return False
    if job.booking_id not in (None, booking.id) or (not job.request.gpu_count and job.booking_id is None):
        return False
    if not booking.starts_at <= NOW < booking.ends_at - job.grace_seconds:
        return False
    booked = {hold.device_id for rank in booking.ranks for hold in rank.holds}
    nodes = {rank.node_id for rank in booking.ranks}
    if (
        not {hold.device_id for rank in ranks for hold in rank.holds} <= booked
        or not {rank.node_id for rank in ranks} <= nodes
    ):
        return False
    if not oracle.is_legal(job.request, ranks, snapshot.nodes, policy, snapshot.running):
        return False
    return _fits_with(snapshot, job, ranks, booking.ends_at, booking.id)


def _fits_with(
    snapshot: Snapshot, job: Job, ranks: tuple[RankPlacement, ...], end: float, booking_id: int | None
) -> bool:
    """Return whether the placement leaves no node with less than nothing that had enough without it."""
    hard = [booking for booking in snapshot.bookings if booking.is_hard and booking.ends_at > NOW]
    running = [(latest_end(entry), entry) for entry in snapshot.running]
    new = RunningJob(job.id, job.tenant_id, job.request, ranks, NOW, booking_id=booking_id)
    # The devices are judged apart, so that two jobs may share one.
    bare = replace(new, ranks=tuple(replace(rank, holds=()) for rank in ranks))
    moments = {NOW, *[booking.starts_at for booking in hard if NOW < booking.starts_at < end]}
    return all(_fits_at(snapshot, at, hard, [*running, (end, bare)]) for at in moments)
