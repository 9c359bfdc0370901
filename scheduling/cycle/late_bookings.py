"""Checks a plan against the reservations that were booked while it was made: their CPU and memory."""

from collections.abc import Sequence

from scheduling.engine.bookings.crowding import crowded_out
from scheduling.engine.model import Booking, Placement, Snapshot
from scheduling.reservations.bookings import load_bookings


class LateBookings:
    """The reservations that a plan did not know. PostgreSQL's rows of the devices are checked apart."""

    def __init__(self, snapshot: Snapshot, placements: Sequence[Placement], now: float) -> None:
        self._snapshot, self._placements, self._now = snapshot, placements, now
        self._known = frozenset(snapshot.bookings)
        self._cached: dict[tuple[Booking, ...], frozenset[int]] = {}

    def without_room(self, placements: Sequence[Placement]) -> frozenset[int]:
        """Return the jobs of the plan that leave too little CPU or memory to a late reservation on the nodes of these
        placements. Call it with the shared lock RESERVATIONS."""
        node_ids = {rank.node_id for placement in placements for rank in placement.ranks}
        bookings = load_bookings(sorted(node_ids))
        late = tuple([booking for booking in bookings if booking.is_hard and booking not in self._known])
        if not late:
            return frozenset()
        if late not in self._cached:
            self._cached[late] = crowded_out(self._snapshot, late, self._placements, self._now)
        return self._cached[late]
