"""Promises the first blocked job a place and a time at which no booking is in its way."""

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.bookings.bookings import Bookings
from scheduling.engine.model import Promise, RankPlacement
from scheduling.engine.placement.placement import place, ranks_on, ranks_per_node
from scheduling.engine.promise.backfill import JobEnd, LaterSlots

_end_at = attrgetter("at")
_booking_end = attrgetter("ends_at")


def promise_beside(
    bookings: Bookings, unbooked: Board, shape: Shape, job_id: int, seconds: float, ends: Iterable[JobEnd], first: float
) -> tuple[Promise, LaterSlots] | None:
    """Return the earliest time from `first` on at which a job that takes so many seconds fits beside all bookings, and
    the promised nodes at that time; None: there is none.

    `unbooked`: the present board as if nothing were booked. `ends`: when the running jobs end, those inside a booking
    with the booking. The bound of `backfill.promise` holds while no hard booking is added.
    """
    ordered = sorted(_with_bookings(bookings, ends))
    search = _Search(bookings, unbooked, shape, seconds, ordered, first)
    moments = {first, *map(_end_at, ordered), *map(_booking_end, bookings.hard)}
    for at in sorted([moment for moment in moments if moment >= first]):
        search.go_on(at)
        if search.has_room():
            ranks = search.place()
            if ranks is not None:
                node_ids = tuple(sorted({rank.node_id for rank in ranks}))
                return Promise(job_id, at, node_ids, ranks), search.later_slots(node_ids)
    return None


def _with_bookings(bookings: Bookings, ends: Iterable[JobEnd]) -> Iterable[JobEnd]:
    """Return when others can use the capacity of each running job: inside a booking, when that ends."""
    inside, by_id = bookings.inside, bookings.by_id
    if not inside:
        return ends
    return [
        end._replace(at=by_id[booking_id].ends_at) if (booking_id := inside.get(end.job_id)) in by_id else end
        for end in ends
    ]


class _Search:
    """The cluster at one moment after the other; a node counts with what stays free from then until the job would end.

    Only nodes where a job or a booking ends, or a booking starts, are counted again. Another booking may come into the
    way of a node meanwhile, so the nodes that count are checked before the job is placed.
    """

    def __init__(
        self, bookings: Bookings, unbooked: Board, shape: Shape, seconds: float, ends: Sequence[JobEnd], first: float
    ) -> None:
        """`ends`: sorted."""
        self.bookings, self.unbooked, self.shape, self.seconds, self.at = bookings, unbooked, shape, seconds, first
        self._ends, self._passed = ends, 0
        self._starts = [booking for booking in bookings.hard if booking.starts_at > first]
        self._started = 0
        self._stops = sorted([booking for booking in bookings.hard if booking.ends_at > first], key=_booking_end)
        self._stopped = 0
        # Copies of the nodes on which jobs have ended.
        self._changed: dict[int, NodeSlot] = {}
        self._stale: set[int] = set()
        self._release_until(first)
        self.counts = {split: ranks_per_node(unbooked, shape, split) for split in shape.splits}
        self._fewest_gpus = min([shape.part(split)[0] for split in shape.splits], default=0)
        self._offered = next(iter(self.counts.values()), {}).keys()
        # position -> the start of the first booking that is not in the way yet.
        self._next_start: dict[int, float] = {}
        booked = {slot.position for node_id in bookings.nodes if (slot := unbooked.slot_of(node_id)) is not None}
        for position in self._stale | booked:
            self._count(position)
        self._stale.clear()
        self.totals = {split: sum(counts.values()) for split, counts in self.counts.items()}
        self.full = {split: _number_full(counts, split) for split, counts in self.counts.items()}

    def go_on(self, at: float) -> None:
        """Go on to a moment, and count the nodes that may have got more."""
        self.at = at
        self._release_until(at)
        while self._started < len(self._starts) and self._starts[self._started].starts_at <= at:
            self._mark(self._starts[self._started].ranks)
            self._started += 1
        while self._stopped < len(self._stops) and self._stops[self._stopped].ends_at <= at:
            self._mark(self._stops[self._stopped].ranks)
            self._stopped += 1
        for position in self._stale:
            self._count_again(position)
        self._stale.clear()

    def has_room(self) -> bool:
        """Return whether the request may fit now."""
        if not self._may_fit():
            return False
        until = self.at + self.seconds
        for position in [position for position, start in self._next_start.items() if start < until]:
            self._count_again(position)
        return self._may_fit()

    def place(self) -> tuple[RankPlacement, ...] | None:
        """Return where the request fits now."""
        positions = {position for counts in self.counts.values() for position, count in counts.items() if count}
        return place(self.unbooked.restricted(map(self._narrowed, positions)), self.shape)

    def later_slots(self, node_ids: Iterable[int]) -> LaterSlots:
        """Return copies of nodes, without what the bookings have now."""
        slots: LaterSlots = {}
        for node_id in node_ids:
            if (slot := self.unbooked.slot_of(node_id)) is not None:
                slots[node_id] = slot = self._changed.get(slot.position, slot).copy()
                if node_id in self.bookings.nodes:
                    (cpu_milli, memory_mb), _ = self._booked(node_id)
                    slot.cpu_milli, slot.memory_mb = slot.cpu_milli - cpu_milli, slot.memory_mb - memory_mb
        return slots

    def _release_until(self, at: float) -> None:
        while self._passed < len(self._ends) and self._ends[self._passed].at <= at:
            for rank in self._ends[self._passed].ranks:
                if (slot := self.unbooked.slot_of(rank.node_id)) is not None:
                    changed = self._changed.get(slot.position)
                    if changed is None:
                        changed = self._changed[slot.position] = slot.copy()
                    changed.release(rank)
                    self._stale.add(slot.position)
            self._passed += 1

    def _mark(self, ranks: Iterable[RankPlacement]) -> None:
        slots = [self.unbooked.slot_of(rank.node_id) for rank in ranks]
        self._stale.update([slot.position for slot in slots if slot is not None])

    def _may_fit(self) -> bool:
        return any(
            self.full[split] or (self.shape.spread and self.totals[split] >= split) for split in self.shape.splits
        )

    def _count_again(self, position: int) -> None:
        if position not in self._offered:
            return
        previous = [counts[position] for counts in self.counts.values()]
        self._count(position)
        for (split, counts), count in zip(self.counts.items(), previous, strict=True):
            if counts[position] != count:
                self.totals[split] += counts[position] - count
                self.full[split] += (counts[position] >= split) - (count >= split)

    def _count(self, position: int) -> None:
        """Count how many ranks fit on a node."""
        if position not in self._offered:
            return
        self._next_start.pop(position, None)
        slot = self._changed.get(position, self.unbooked.slots[position])
        node = self.bookings.nodes.get(slot.node.id)
        until = self.at + self.seconds
        is_full = self._lacks_devices(slot, 0) or (
            node is not None and self._lacks_devices(slot, node.number_booked(slot.free, self.at, until))
        )
        if not is_full:
            slot = self._narrowed(position)
            if node is not None and (start := node.next_start(until)) is not None:
                self._next_start[position] = start
        ranks = [0] * len(self.counts) if is_full else ranks_on(self.unbooked, slot, self.shape)
        for counts, count in zip(self.counts.values(), ranks, strict=True):
            counts[position] = count

    def _narrowed(self, position: int) -> NodeSlot:
        """Return a node with what stays free from this moment on until the job would end."""
        slot = self._changed.get(position, self.unbooked.slots[position])
        node = self.bookings.nodes.get(slot.node.id)
        if node is None:
            return slot
        (cpu_milli, memory_mb), devices = self._booked(slot.node.id)
        until = self.at + self.seconds
        booked: Collection[int] = node.booked_devices(self.at, until).union(devices)
        slot = slot.copy_without(booked, {id: kind for id, kind in slot.kind_of.items() if id not in booked})
        slot.cpu_milli, slot.memory_mb = slot.cpu_milli - cpu_milli, slot.memory_mb - memory_mb
        node.narrow_amounts(slot, self.at, until)
        return slot

    def _lacks_devices(self, slot: NodeSlot, booked: int) -> bool:
        """Return whether a node has fewer free devices than the smallest rank needs: CPU and memory do not matter
        then. `booked`: of the free devices."""
        return slot.free_count - booked < self._fewest_gpus and not (slot.shared and self.shape.share_mb is not None)

    def _booked(self, node_id: int) -> tuple[tuple[int, int], list[int]]:
        return self.bookings.nodes[node_id].booked_at(self.at, self.bookings.remaining_on(node_id))


def _number_full(counts: dict[int, int], split: int) -> int:
    """Return how many nodes hold all of `split` ranks."""
    return sum([count >= split for count in counts.values()])
