"""Explains jobs that wait because of a booking: their own, which they insist on, or one that is in their way."""

from bisect import bisect_left
from collections.abc import Mapping
from itertools import takewhile
from math import inf
from operator import attrgetter

from scheduling.engine.board.shapes import Shape
from scheduling.engine.bookings.bookings import Bookings, free_kinds
from scheduling.engine.explain.explain import ClusterState, count_in_words, free_gpus, timestamp
from scheduling.engine.model import Booking, Evidence, Job, PendingReason, RankPlacement
from scheduling.engine.placement.placement import can_place

_starts_at = attrgetter("starts_at")


def insisting(cluster: ClusterState, job: Job) -> PendingReason:
    """Return why a job that insists on a booking does not start: that has ended, has not started, is full, or is not
    for the job."""
    booking = None if cluster.bookings is None else cluster.bookings.by_id.get(job.booking_id or 0)
    name = f"reservation {job.booking_id}"
    if booking is None:
        return PendingReason("reservation_ended", {"reservation": job.booking_id})
    if booking.tenant_id != job.tenant_id or (booking.user_ids and job.user_id not in booking.user_ids):
        return PendingReason("constraint", {"constraint": f"the request: {name} is for others"})
    gpus = sum(len(rank.holds) for rank in booking.ranks)
    if job.request.gpu_count > gpus:
        return PendingReason("constraint", {"constraint": f"the request: {name} has {gpus} GPUs"})
    evidence: Evidence = {
        "reservation": booking.id,
        "at": timestamp(booking.starts_at),
        "until": timestamp(booking.ends_at),
    }
    return PendingReason("reservation_pending", evidence)


def reserved_soon(cluster: ClusterState, shape: Shape, job: Job, *, is_full: bool) -> PendingReason | None:
    """Return that the request would fit now if nothing were booked, with the first booking in its way; else None.

    `is_full`: it does not fit now, however short the job is. `holder` is missing: callers add it for each tenant (see
    `name_booking`)."""
    bookings = cluster.bookings
    if bookings is None or not bookings.hard:
        return None
    unbooked = cluster.unbooked_board
    if not can_place(unbooked, shape):
        return None
    booking = _active_in_the_way(cluster, shape) if is_full else _ahead_in_the_way(cluster, bookings, shape, job)
    if booking is None:
        return None
    evidence: Evidence = {
        "free": count_in_words(free_gpus(unbooked, shape)),
        "at": timestamp(booking.starts_at),
        "until": timestamp(booking.ends_at),
        "for_reservation": booking.id,
    }
    return PendingReason("reserved_soon", evidence)


def name_booking(bookings: Mapping[int, Booking], verdict: PendingReason, tenant_id: int) -> PendingReason:
    """Return the reason with the holder of the booking; one of another tenant is not named."""
    evidence = dict(verdict.evidence)
    booking = bookings[int(evidence.pop("for_reservation") or 0)]
    if booking.tenant_id == tenant_id:
        return PendingReason(
            verdict.code, {**evidence, "holder": f"reservation {booking.id}", "reservation": booking.id}
        )
    return PendingReason(verdict.code, {**evidence, "holder": "a reservation of another tenant"})


def latest_end_of(bookings: Bookings, job: Job) -> float:
    """Return when a job that would start now has ended at the latest; inf without a time limit."""
    return inf if job.max_runtime_seconds is None else bookings.now + job.max_runtime_seconds + job.grace_seconds


def _active_in_the_way(cluster: ClusterState, shape: Shape) -> Booking | None:
    """Return the first active booking on devices that would be free and suit the request."""
    for booking, kinds in cluster.booked_kinds:
        if _is_in_the_way(cluster, shape, booking, kinds):
            return booking
    return None


def _ahead_in_the_way(cluster: ClusterState, bookings: Bookings, shape: Shape, job: Job) -> Booking | None:
    """Return the first booking on suitable free devices that starts before the job would end, and stops it."""
    until, starts = latest_end_of(bookings, job), bookings.starts
    last = bookings.level(until)
    # The longer a job lasts, the less is left to it: search among few levels first, as the first booking is often it.
    fitting, step = 0, 1
    while fitting + step <= last and _fits_at(cluster, bookings, shape, fitting + step):
        fitting, step = fitting + step, 2 * step
    level = bisect_left(
        range(fitting + 1, min(fitting + step - 1, last) + 1),
        True,
        key=lambda level: not _fits_at(cluster, bookings, shape, level),
    )
    level += fitting
    if level == last:
        return None
    ahead = bookings.hard[bisect_left(bookings.hard, starts[level], key=_starts_at) :]
    return next(
        (
            booking
            for booking in takewhile(lambda booking: booking.starts_at < until, ahead)
            if _is_in_the_way(cluster, shape, booking, free_kinds(booking, cluster.unbooked_board))
        ),
        None,
    )


def _is_in_the_way(cluster: ClusterState, shape: Shape, booking: Booking, kinds: frozenset[int]) -> bool:
    """Return whether the request could have a device of the booking if that were not booked. `kinds`: of those that
    are wholly free then."""
    if not shape.request.gpu_count or not kinds.isdisjoint(shape.limits_mb):
        return True
    return shape.share_mb is not None and any(_has_shared_room(cluster, shape, rank) for rank in booking.ranks)


def _has_shared_room(cluster: ClusterState, shape: Shape, rank: RankPlacement) -> bool:
    """Return whether a device of the rank that others share has room for the request, too."""
    if (slot := cluster.unbooked_board.slot_of(rank.node_id)) is None:
        return False
    shared = {hold.device_id for hold in rank.holds} & slot.shared.keys()
    return any(shape.headroom_mb(slot.kind_of[id], slot.shared[id], slot.compute.get(id, -1.0)) >= 0 for id in shared)


def _fits_at(cluster: ClusterState, bookings: Bookings, shape: Shape, level: int) -> bool:
    """Return whether the request fits for jobs of a level."""
    until = bookings.starts[level] if level < len(bookings.starts) else inf
    return can_place(bookings.board(cluster.board, until), shape)
