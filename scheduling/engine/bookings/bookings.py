"""The bookings of a cycle: the boards beside them, and what each active one has left."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.bookings.booked_node import Amount, BookedNode, NodeLoad
from scheduling.engine.bookings.level_boards import LevelBoards
from scheduling.engine.model import Booking, Node, RankPlacement, RunningJob, Snapshot

# Jobs avoid the devices of a soft booking from this long before it starts.
_SOON_SECONDS = 86_400.0


class Bookings:
    """The bookings of a snapshot. `present`: the board without the devices of active hard ones.

    A job belongs to a level: the number of distinct starts before its latest end. All jobs of a level share a board
    (see `LevelBoards`).
    """

    def __init__(self, snapshot: Snapshot, now: float, bare: Board) -> None:
        """`bare`: the board of the snapshot, as if nothing were booked."""
        self.now, self.bare = now, bare
        current = sorted([booking for booking in snapshot.bookings if booking.ends_at > now], key=_order)
        self.hard = [booking for booking in current if booking.is_hard]
        self.active = [booking for booking in current if booking.starts_at <= now]
        self.by_id = {booking.id: booking for booking in current}
        self.inside = {
            job.job_id: job.booking_id for job in snapshot.running if job.booking_id is not None and self.is_inside(job)
        }
        self._remaining = {
            (booking.id, node_id): (rank.cpu_milli, rank.memory_mb)
            for booking in self.active
            if booking.is_hard
            for node_id, rank in _merged(booking.ranks).items()
        }
        self._running: dict[int, list[tuple[RunningJob, RankPlacement]]] = {}
        self.nodes = self._booked_nodes(snapshot)
        self._take_inside(snapshot.running)
        self.present = bare.copy()
        self.withhold_active(self.present)
        starts = {booking.starts_at for booking in self.hard if booking.starts_at > now}
        self.starts = sorted(starts)
        self.boards = LevelBoards(self.present, self.nodes, self.starts, now)
        self._ended: set[int] = set()

    def is_inside(self, job: RunningJob) -> bool:
        """Return whether a running job uses the capacity of a hard booking."""
        booking = self.by_id.get(job.booking_id or 0)
        return booking is not None and booking.is_hard and booking.starts_at <= self.now

    def level(self, until: float) -> int:
        return self.boards.level(until)

    def board(self, base: Board, until: float) -> Board:
        """Return the board for jobs that last until then. `base`: the present board, or the lasting one."""
        return self.boards.board(base, until)

    def amounts_beside(self, base: Board, node_id: int, until: float) -> Amount:
        """Return the CPU and memory of a node that are free on a board until then."""
        slot = base.slot_of(node_id)
        if slot is None:
            return 0, 0
        cpu_milli, memory_mb = self.nodes[node_id].smallest_amounts(self.now, until)
        return int(min(slot.cpu_milli, cpu_milli)), int(min(slot.memory_mb, memory_mb))

    def count(self, ranks: Iterable[RankPlacement], from_at: float, until: float, sign: int = 1) -> None:
        """Count ranks beside the bookings, which the present board has already, from one moment until another."""
        for rank in ranks:
            self.boards.note_change(rank.node_id)
            if (node := self.nodes.get(rank.node_id)) is not None:
                node.take(rank, from_at, until, sign)

    def end(self, ending: Iterable[RunningJob]) -> None:
        """Count running jobs as ended: they are being stopped."""
        for job in ending:
            if job.job_id not in self._ended and job.job_id not in self.inside:
                self._ended.add(job.job_id)
                self._count_ended(job, -1)

    def allows(self, ranks: Iterable[RankPlacement], until: float, ending: Sequence[RunningJob] = ()) -> bool:
        """Return whether the bookings ahead leave room for these ranks until then, if some running jobs end now."""
        beside = [job for job in ending if job.job_id not in self._ended and job.job_id not in self.inside]
        for job in beside:
            self._count_ended(job, -1)
        allowed: list[bool] = []
        for rank in ranks:
            if (node := self.nodes.get(rank.node_id)) is not None:
                allowed.append(node.allows(rank, until))
                node.take(rank, self.now, until)
        for rank in ranks:
            if (node := self.nodes.get(rank.node_id)) is not None:
                node.take(rank, self.now, until, -1)
        for job in beside:
            self._count_ended(job, 1)
        return all(allowed)

    def remaining(self, booking_id: int, node_id: int) -> Amount:
        """Return the CPU and memory of an active hard booking on a node that its jobs have not taken."""
        return self._remaining[booking_id, node_id]

    def remaining_on(self, node_id: int) -> list[Amount]:
        return [self._remaining[booking.id, node_id] for booking, _ in self.nodes[node_id].active]

    def take_inside(self, booking: Booking, rank: RankPlacement) -> Amount:
        """Take a rank's CPU and memory from a booking; return what the booking lacks, which it takes beside it."""
        cpu_milli, memory_mb = self._remaining[booking.id, rank.node_id]
        self._remaining[booking.id, rank.node_id] = (
            max(cpu_milli - rank.cpu_milli, 0),
            max(memory_mb - rank.memory_mb, 0),
        )
        return max(rank.cpu_milli - cpu_milli, 0), max(rank.memory_mb - memory_mb, 0)

    def withhold_active(self, board: Board) -> None:
        """Remove the capacity of active hard bookings from another board of the same nodes."""
        for node_id, node in self.nodes.items():
            if node.active and (slot := board.slot_of(node_id)) is not None:
                board.put(self._without_active(slot.copy(), node_id))

    def active_slots(self) -> dict[int, NodeSlot]:
        """Return copies of the nodes with active bookings, by id: as they were when the cycle began, with nothing
        booked."""
        return {
            node_id: slot.copy()
            for node_id, node in self.nodes.items()
            if node.active and (slot := self.bare.slot_of(node_id)) is not None
        }

    def _count_ended(self, job: RunningJob, sign: int) -> None:
        self.count(job.ranks, self.now + job.grace_seconds, latest_end(job, self.now), sign)

    def _booked_nodes(self, snapshot: Snapshot) -> dict[int, BookedNode]:
        parts: dict[int, list[tuple[Booking, RankPlacement]]] = {}
        for booking in self.hard:
            for node_id, rank in _merged(booking.ranks).items():
                parts.setdefault(node_id, []).append((booking, rank))
        running = self._running = {node_id: [] for node_id in parts}
        for job in snapshot.running:
            for rank in job.ranks:
                if (entries := running.get(rank.node_id)) is not None:
                    entries.append((job, rank))
        nodes = {node.id: node for node in snapshot.nodes}
        return {
            node_id: BookedNode(self.now, entries, partial(self._load, node_id, nodes.get(node_id)))
            for node_id, entries in parts.items()
        }

    def _load(self, node_id: int, node: Node | None) -> NodeLoad:
        """Return the use of a node when the cycle begins."""
        running = self._running[node_id]
        cpu_milli = sum([rank.cpu_milli for _, rank in running]) + (0 if node is None else node.cpu_milli_free)
        memory_mb = sum([rank.memory_mb for _, rank in running]) + (0 if node is None else node.memory_mb_free)
        beside: list[tuple[float, RankPlacement]] = []
        inside: dict[int, list[RankPlacement]] = {}
        for job, rank in running:
            booking_id = self.inside.get(job.job_id) or 0
            if (booking_id, node_id) in self._remaining:
                inside.setdefault(booking_id, []).append(rank)
            else:
                beside.append((latest_end(job, self.now), rank))
        active = [_largest(rank, inside.get(booking.id, ())) for booking, rank in self.nodes[node_id].active]
        return NodeLoad(cpu_milli, memory_mb, beside, active)

    def _take_inside(self, running: Iterable[RunningJob]) -> None:
        for job in running if self.inside else ():
            booking = self.by_id.get(self.inside.get(job.job_id) or 0)
            for rank in job.ranks if booking is not None else ():
                if booking is not None and (booking.id, rank.node_id) in self._remaining:
                    self.take_inside(booking, rank)

    def _without_active(self, slot: NodeSlot, node_id: int) -> NodeSlot:
        for booking, rank in self.nodes[node_id].active:
            cpu_milli, memory_mb = self._remaining[booking.id, node_id]
            slot.cpu_milli, slot.memory_mb = slot.cpu_milli - cpu_milli, slot.memory_mb - memory_mb
            slot.remove_devices([hold.device_id for hold in rank.holds])
        return slot


def avoided_devices(snapshot: Snapshot, now: float) -> frozenset[int]:
    """Return the devices of soft bookings that are active or begin soon."""
    soft = [booking for booking in snapshot.bookings if not booking.is_hard and booking.ends_at > now]
    soon = [booking for booking in soft if booking.starts_at <= now + _SOON_SECONDS]
    return frozenset([hold.device_id for booking in soon for rank in booking.ranks for hold in rank.holds])


def free_kinds(booking: Booking, board: Board) -> frozenset[int]:
    """Return the kinds of the booked devices that are wholly free on a board."""
    kinds: set[int] = set()
    for rank in booking.ranks:
        if (slot := board.slot_of(rank.node_id)) is not None:
            ids = {hold.device_id for hold in rank.holds}
            kinds.update([kind for kind, free in slot.free.items() if not ids.isdisjoint(free)])
    return frozenset(kinds)


def unbooked(board: Board, snapshot: Snapshot, now: float) -> Board:
    """Return a board of the snapshot without the capacity of active hard bookings."""
    return Bookings(snapshot, now, board).present if snapshot.bookings else board


def latest_end(job: RunningJob, now: float) -> float:
    """Return when a running job has ended at the latest, after its grace period; inf without a time limit."""
    if job.ends_by is None:
        return inf
    return max(job.ends_by if job.is_stopping else job.ends_by + job.grace_seconds, now)


def _order(booking: Booking) -> tuple[float, int]:
    return booking.starts_at, booking.id


def _largest(rank: RankPlacement, inside: Sequence[RankPlacement]) -> Amount:
    """Return what an active booking takes of a node: its own part, or more if its jobs also take what is free."""
    cpu_milli, memory_mb = sum(job.cpu_milli for job in inside), sum(job.memory_mb for job in inside)
    return max(rank.cpu_milli, cpu_milli), max(rank.memory_mb, memory_mb)


def _merged(ranks: Sequence[RankPlacement]) -> Mapping[int, RankPlacement]:
    """Return the part of each node, as one rank."""
    if len(ranks) == 1:
        return {ranks[0].node_id: ranks[0]}
    merged: dict[int, RankPlacement] = {}
    for rank in ranks:
        other = merged.get(rank.node_id)
        if other is None:
            merged[rank.node_id] = rank
        else:
            cpu_milli, memory_mb = other.cpu_milli + rank.cpu_milli, other.memory_mb + rank.memory_mb
            merged[rank.node_id] = RankPlacement(0, rank.node_id, cpu_milli, memory_mb, (*other.holds, *rank.holds))
    return merged
