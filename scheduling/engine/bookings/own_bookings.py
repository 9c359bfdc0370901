"""Places jobs in the active bookings of their tenants: on the booked devices alone, whole jobs only."""

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.bookings.bookings import Bookings
from scheduling.engine.model import Booking, Job, RankPlacement


class OwnBookings:
    """The active bookings by tenant, and what is free in each. A job takes CPU and memory from its booking first, then
    what is free on the node until the booking ends."""

    def __init__(self, bookings: Bookings) -> None:
        self.bookings = bookings
        self._by_tenant: dict[int, list[Booking]] = {}
        for booking in sorted(bookings.active, key=lambda booking: (not booking.is_hard, booking.ends_at, booking.id)):
            self._by_tenant.setdefault(booking.tenant_id, []).append(booking)
        self._free = {booking.id: _free_devices(booking, bookings.bare) for booking in bookings.active}
        # The board and the nodes of each hard booking, once they are needed.
        self._hard: dict[int, tuple[Board, list[NodeSlot]]] = {}
        self._full: set[tuple[int, int]] = set()
        # tenant -> request -> the bookings that are not full for it; without the tenants whose bookings have changed.
        self._roomy: dict[int, dict[int, list[Booking]]] = {}

    def usable_by(self, job: Job, number: int) -> list[Booking]:
        """Return the bookings that the job may use and that are not known to be full for its request, hard ones and
        those that end first before others. A job without GPUs uses only the one that it insists on."""
        bookings = self._with_room(job, number)
        if not bookings:
            return []
        request, wanted, now = job.request, job.booking_id, self.bookings.now
        return [
            booking
            for booking in bookings
            if (wanted == booking.id if wanted is not None else request.gpu_count)
            and now + job.grace_seconds < booking.ends_at
            and not (booking.user_ids and job.user_id not in booking.user_ids)
        ]

    def has_room(self, job: Job, number: int) -> bool:
        """Return whether some booking of the tenant is not known to be full for the request, whoever submits it."""
        bookings = self._with_room(job, number)
        return any([job.request.gpu_count or job.booking_id == booking.id for booking in bookings])

    def board(self, booking: Booking, beside: Board) -> Board:
        """Return the board of a booking: what is free in it. `beside`: the board of all jobs that last as long or, for
        a soft booking, the one for this job."""
        if not booking.is_hard:
            return self.bookings.bare.restricted(_only_booked(booking, beside))
        if booking.id not in self._hard:
            slots = _only_booked(booking, self.bookings.bare)
            self._hard[booking.id] = self.bookings.bare.restricted(slots), slots
        board, slots = self._hard[booking.id]
        for slot in slots:
            cpu_milli, memory_mb = self.bookings.remaining(booking.id, slot.node.id)
            free = self.bookings.amounts_beside(beside, slot.node.id, booking.ends_at)
            slot.cpu_milli, slot.memory_mb = cpu_milli + free[0], memory_mb + free[1]
            if (other := beside.slot_of(slot.node.id)) is not None:
                slot.anti_affinity_counts = dict(other.anti_affinity_counts)
            board.put(slot)
        return board

    def start(self, booking: Booking, ranks: tuple[RankPlacement, ...]) -> tuple[RankPlacement, ...]:
        """Allocate a job in a hard booking; return what it takes beside it."""
        self._hard[booking.id][0].allocate(ranks)
        if not any(hold.memory_mb for rank in ranks for hold in rank.holds):
            self._free[booking.id] -= sum(len(rank.holds) for rank in ranks)
            self._roomy.pop(booking.tenant_id, None)
        beside = []
        for rank in ranks:
            cpu_milli, memory_mb = self.bookings.take_inside(booking, rank)
            if cpu_milli or memory_mb or rank.apart:
                beside.append(RankPlacement(rank.rank, rank.node_id, cpu_milli, memory_mb, (), rank.apart))
        return tuple(beside)

    def mark_full(self, booking: Booking, number: int) -> None:
        """Note that the request does not fit, which is final: a booking only fills up in a cycle."""
        self._full.add((booking.id, number))
        self._roomy.pop(booking.tenant_id, None)

    def _with_room(self, job: Job, number: int) -> list[Booking]:
        """Return the bookings of the tenant that are not known to be full for the request."""
        if job.tenant_id not in self._by_tenant:
            return []
        roomy = self._roomy.setdefault(job.tenant_id, {})
        bookings = roomy.get(number)
        if bookings is None:
            request, full, free = job.request, self._full, self._free
            bookings = roomy[number] = [
                booking
                for booking in self._by_tenant[job.tenant_id]
                if (booking.id, number) not in full and (request.shared or request.gpu_count <= free[booking.id])
            ]
        return bookings


def _free_devices(booking: Booking, board: Board) -> int:
    """Return how many of the booked devices are wholly free."""
    slots = [(board.slot_of(rank.node_id), rank) for rank in booking.ranks]
    return sum(
        hold.device_id in slot.free.get(slot.kind_of.get(hold.device_id, -1), ())
        for slot, rank in slots
        if slot is not None
        for hold in rank.holds
    )


def _only_booked(booking: Booking, board: Board) -> list[NodeSlot]:
    """Return the slots of a booking's nodes, with no other devices than its own."""
    devices: dict[int, set[int]] = {}
    for rank in booking.ranks:
        devices.setdefault(rank.node_id, set()).update([hold.device_id for hold in rank.holds])
    slots = []
    for node_id, booked in devices.items():
        if (slot := board.slot_of(node_id)) is not None:
            slot = slot.copy()
            slot.remove_devices(slot.kind_of.keys() - booked)
            slots.append(slot)
    return slots
