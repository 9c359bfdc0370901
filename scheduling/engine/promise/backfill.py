"""Promises the first blocked job a place and a time, and lets later jobs pass only if that does not delay it."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import Booking, Policy, Promise, RankPlacement, RunningJob
from scheduling.engine.placement.placement import place, ranks_per_node, ranks_that_fit


class JobEnd(NamedTuple):
    """When a job releases what its ranks hold, at the latest. Sorted by time, then by job."""

    at: float
    job_id: int
    ranks: tuple[RankPlacement, ...]


# The promised nodes, by id, when the promised job starts: without it and what lasts until then.
LaterSlots = dict[int, NodeSlot]


class PromiseGuard:
    """The promise during a cycle: `lasting` is the board for jobs that do not end before `promise.at`.

    It differs from the present board on the promised nodes alone: there it has only what is free now and stays free
    when the promised job has started.
    """

    __slots__ = ("_later", "lasting", "promise")

    def __init__(self, promise: Promise, board: Board, later: LaterSlots) -> None:
        self.promise = promise
        self.lasting = board.copy()
        # The promised nodes as they will be then, with the promised job.
        self._later = later
        for rank in promise.ranks:
            later[rank.node_id].allocate(rank)
        for node_id in promise.node_ids:
            self._narrow(board, node_id)

    def allocate(self, board: Board, ranks: tuple[RankPlacement, ...], ends_at: float) -> None:
        """Count a job that was just allocated on the present board."""
        self.lasting.allocate(rank for rank in ranks if rank.node_id not in self._later)
        for rank in ranks:
            later = self._later.get(rank.node_id)
            if later is not None and ends_at > self.promise.at:
                later.allocate(rank)
        for node_id in sorted({rank.node_id for rank in ranks}):
            if node_id in self._later:
                self._narrow(board, node_id)

    def withhold(self, board: Board, ranks: tuple[RankPlacement, ...], ends_at: float) -> None:
        """Count ranks that were just withheld on the present board for a preempting job."""
        self.lasting.withhold(rank for rank in ranks if rank.node_id not in self._later)
        # No job is stopped on the promised nodes, so the ranks there use what is free now.
        self.allocate(board, tuple(rank for rank in ranks if rank.node_id in self._later), ends_at)

    @property
    def node_ids(self) -> frozenset[int]:
        return frozenset(self._later)

    def _narrow(self, board: Board, node_id: int) -> None:
        now = board.slot_of(node_id)
        if now is not None:
            self.lasting.put(_common(now, self._later[node_id]))


def promise(
    board: Board, shape: Shape, job_id: int, ends: Iterable[JobEnd], now: float, not_before: float
) -> tuple[Promise, LaterSlots] | None:
    """Return the earliest time at which a job fits if all jobs run to their upper bounds, and the promised nodes at
    that time.

    None: it does not fit even when all running jobs have ended. `not_before`: its tenant's limits allow it only then.

    Bound: while its job keeps the promise (the next snapshot names it), `at` never moves later. Jobs that pass it
    either end by `at` or are disjoint from the promised devices, CPU and memory, so the same place is free at `at`
    in the next cycle too. So a job that is first in order starts after at most the longest remaining run time bound
    of the jobs that run then, however many smaller jobs pass. Only a bound that turns out too low (a job without time
    limit that outlives `unlimited_runtime_seconds`, an extended limit), or a lost node, moves it.
    """
    future = board.overlay()
    if not any(has_room(ranks_per_node(future, shape, split), shape, split) for split in shape.splits):
        at = first_fit(future, shape, sorted(ends))
        if at is None:
            return None
    else:
        at = now
    ranks = place(future, shape)
    if ranks is None:
        return None
    later = {rank.node_id: slot.copy() for rank in ranks if (slot := future.slot_of(rank.node_id)) is not None}
    return Promise(job_id, max(at, now, not_before), tuple(sorted(later)), ranks), later


def ends_of(
    running: Sequence[RunningJob], policy: Policy, now: float, bookings: Iterable[Booking] = ()
) -> list[JobEnd]:
    """Return upper bounds of the ends: the time limit, or `unlimited_runtime_seconds` from the start, and the end of
    the hard booking in which a job runs, which stops it; never in the past."""
    stops = {booking.id: booking.ends_at for booking in bookings if booking.is_hard and booking.ends_at > now}
    ends = []
    for job in running:
        bound = job.started_at + policy.unlimited_runtime_seconds if job.ends_by is None else job.ends_by
        if stops and job.booking_id is not None:
            bound = min(bound, stops.get(job.booking_id, inf))
        ends.append(JobEnd(bound if bound > now else now, job.job_id, job.ranks))
    return ends


def ends_at(max_runtime_seconds: int | None, now: float) -> float:
    """Return the latest end of a job that would start now; without a time limit inf."""
    return inf if max_runtime_seconds is None else now + max_runtime_seconds


def first_fit(future: Board, shape: Shape, ends: Iterable[JobEnd]) -> float | None:
    """Release job by job until the shape fits, and return that time; only the nodes that change are checked again.

    `future`: an overlay, on which the nodes that change are replaced by copies. `ends`: sorted.
    """
    copied: set[int] = set()
    by_split = {split: ranks_per_node(future, shape, split) for split in shape.splits}
    totals = {split: sum(counts.values()) for split, counts in by_split.items()}
    for end in ends:
        node_ids = {rank.node_id for rank in end.ranks}
        for node_id in node_ids - copied:
            if (shared := future.slot_of(node_id)) is not None:
                future.put(shared.copy())
        copied |= node_ids
        future.release(end.ranks)
        for node_id in node_ids:
            slot = future.slot_of(node_id)
            if slot is None or slot.position not in by_split[shape.splits[0]]:
                continue
            for split, counts in by_split.items():
                count = ranks_that_fit(slot, shape, split)
                totals[split] += count - counts[slot.position]
                counts[slot.position] = count
                if count >= split or (shape.spread and totals[split] >= split):
                    return end.at
    return None


def has_room(counts: dict[int, int], shape: Shape, split: int) -> bool:
    return max(counts.values(), default=0) >= split or (shape.spread and sum(counts.values()) >= split)


def _common(now: NodeSlot, later: NodeSlot) -> NodeSlot:
    """Return the capacity of one node that is free both now and later."""
    slot = now.copy()
    slot.cpu_milli, slot.memory_mb = min(now.cpu_milli, later.cpu_milli), min(now.memory_mb, later.memory_mb)
    shared: dict[int, int] = {}
    for device_id in sorted({*now.shared, *later.shared}):
        if _is_open(now, device_id) and _is_open(later, device_id):
            shared[device_id] = max(now.shared.get(device_id, 0), later.shared.get(device_id, 0))
    slot.shared = shared
    counts, later_counts = now.anti_affinity_counts, later.anti_affinity_counts
    slot.anti_affinity_counts = {
        key: max(counts.get(key, 0), later_counts.get(key, 0)) for key in {*counts, *later_counts}
    }
    slot.free = {
        kind: [device_id for device_id in ids if device_id in later.free.get(kind, ())]
        for kind, ids in now.free.items()
    }
    slot.free_count = sum(map(len, slot.free.values()))
    return slot


def _is_open(slot: NodeSlot, device_id: int) -> bool:
    return device_id in slot.shared or device_id in slot.free.get(slot.kind_of.get(device_id, -1), ())
