"""Which starts of a plan leave too little to bookings that the plan did not know."""

from collections.abc import Sequence
from dataclasses import replace

from scheduling.engine.board.board import Board
from scheduling.engine.bookings.bookings import Bookings
from scheduling.engine.model import Booking, Job, Placement, RankPlacement, Snapshot
from scheduling.engine.promise.backfill import ends_at


def crowded_out(
    snapshot: Snapshot, late: Sequence[Booking], placements: Sequence[Placement], now: float
) -> frozenset[int]:
    """Return the jobs, of those that the plan starts in order, that do not fit beside these hard bookings as well.

    A booking of the snapshot with the same id is outdated.
    """
    late_ids = {booking.id for booking in late}
    known = [booking for booking in snapshot.bookings if booking.id not in late_ids]
    snapshot = replace(snapshot, bookings=(*known, *late))
    bookings = Bookings(snapshot, now, Board(snapshot.nodes, running=snapshot.running))
    jobs = {job.id: job for job in snapshot.jobs}
    refused = set()
    for placement in placements:
        if not _starts(bookings, jobs[placement.job_id], placement):
            refused.add(placement.job_id)
    return frozenset(refused)


def _starts(bookings: Bookings, job: Job, placement: Placement) -> bool:
    """Count the start of a job beside the bookings; return False, and count nothing, if it does not fit there."""
    booking = bookings.by_id.get(placement.booking_id or 0)
    if booking is not None and booking.is_hard:
        # The plan has counted what it takes in its own booking.
        return True
    until = ends_at(job.max_runtime_seconds, bookings.now) + job.grace_seconds
    if not all([_is_free(bookings, rank) for rank in placement.ranks]) or not bookings.allows(placement.ranks, until):
        return False
    bookings.present.allocate(placement.ranks)
    bookings.count(placement.ranks, bookings.now, until)
    return True


def _is_free(bookings: Bookings, rank: RankPlacement) -> bool:
    """Return whether the active bookings leave CPU and memory for a rank now."""
    slot = bookings.present.slot_of(rank.node_id)
    if slot is None:
        return False
    return not (0 < rank.cpu_milli > slot.cpu_milli or 0 < rank.memory_mb > slot.memory_mb)
