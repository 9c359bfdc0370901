"""The boards of jobs by their latest end: the present board without what is booked until then."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.bookings.booked_node import BookedNode


class LevelBoards:
    """The boards of the levels (see `Bookings`). `starts`: the distinct starts ahead.

    They share the nodes that no booking of their level changes, each is built when it is first needed, and before each
    use it gets the nodes that have changed since.
    """

    def __init__(self, present: Board, nodes: Mapping[int, BookedNode], starts: Sequence[float], now: float) -> None:
        self.present, self.starts, self.now = present, starts, now
        self._booked = {
            slot.position: node
            for node_id, node in nodes.items()
            if node.starts and (slot := present.slot_of(node_id)) is not None
        }
        # The starts ahead of all nodes, and the position of each, in the order of their times.
        ahead = sorted([(start, position) for position, node in self._booked.items() for start in node.starts])
        self._node_starts = [start for start, _ in ahead]
        self._start_positions = [position for _, position in ahead]
        self._present_views: dict[int, _PresentView] = {}
        self._lasting: tuple[Board, frozenset[int]] | None = None
        self._lasting_views: dict[int, _LastingView] = {}
        # The positions of the nodes that have changed, in order.
        self._changed: list[int] = []

    @property
    def are_built(self) -> bool:
        """Return whether any of the boards has been needed yet."""
        return bool(self._present_views)

    def set_lasting(self, board: Board, node_ids: frozenset[int]) -> None:
        """Set the board of the jobs that outlive the promise: it differs from the present one on these nodes only."""
        slots = [board.slot_of(node_id) for node_id in node_ids]
        self._lasting = board, frozenset([slot.position for slot in slots if slot is not None])

    def note_change(self, node_id: int) -> None:
        if (slot := self.present.slot_of(node_id)) is not None:
            self._changed.append(slot.position)

    def level(self, until: float) -> int:
        return bisect_left(self.starts, until)

    def board(self, base: Board, until: float) -> Board:
        """Return the board for jobs that last until then. `base`: the present board, or the lasting one."""
        level = self.level(until)
        if level == 0:
            return base
        view = self._present_views.get(level)
        if view is None:
            view = self._present_views[level] = self._new_view(level)
        self._catch_up(view)
        if base is self.present or self._lasting is None:
            return view.board
        lasting_view = self._lasting_views.get(level)
        if lasting_view is None:
            lasting_view = self._lasting_views[level] = _LastingView(view, *self._lasting)
            lasting_view.seen = len(self._changed)
        self._catch_up(lasting_view)
        return lasting_view.board

    def _new_view(self, level: int) -> "_PresentView":
        """Return the view of a level. It differs from that of a lower level only on the nodes that are booked between
        them, so it begins as a copy of the highest one that exists."""
        lower = max([other for other in self._present_views if other < level], default=0)
        board, since = self.present, self.now
        if lower:
            board, since = self._present_views[lower].board, self.starts[lower]
            self._catch_up(self._present_views[lower])
        end = self.starts[level] if level < len(self.starts) else inf
        first, last = bisect_left(self._node_starts, since), bisect_left(self._node_starts, end)
        stale = dict.fromkeys(self._start_positions[first:last])
        view = _PresentView(self.present, self._booked, self.now, end, board.overlay(), stale)
        view.seen = len(self._changed)
        return view

    def _catch_up(self, view: "_PresentView | _LastingView") -> None:
        if view.seen < len(self._changed):
            for position in dict.fromkeys(self._changed[view.seen :]):
                view.update(position)
            view.seen = len(self._changed)


class _PresentView:
    """The present board for the jobs of one level. `seen`: how many of the changes it has."""

    __slots__ = ("_devices", "_nodes", "_now", "_present", "_until", "board", "seen")

    def __init__(
        self,
        present: Board,
        nodes: Mapping[int, BookedNode],
        now: float,
        until: float,
        board: Board,
        stale: Iterable[int],
    ) -> None:
        """`board`: becomes the view's own; it is right but for the `stale` nodes."""
        self.board, self.seen = board, 0
        self._present, self._nodes, self._now, self._until = present, nodes, now, until
        # position -> what the present board offers there, which of it is booked, and the rest.
        self._devices: dict[int, tuple[dict[int, int], frozenset[int], dict[int, int]]] = {}
        for position in stale:
            self.update(position)

    def update(self, position: int) -> None:
        slot = self._present.slots[position]
        narrowed = self.narrowed(slot)
        if narrowed is slot:
            self.board.mirror(self._present, position)
        else:
            self.board.put(narrowed)

    def narrowed(self, slot: NodeSlot) -> NodeSlot:
        """Return a node without what is booked on it until the end of the level."""
        node = self._nodes.get(slot.position)
        if node is None or node.starts[0] >= self._until:
            return slot
        devices = self._devices.get(slot.position)
        if devices is None or devices[0] is not slot.kind_of:
            booked = node.booked_devices(self._now, self._until)
            rest = {id: kind for id, kind in slot.kind_of.items() if id not in booked}
            devices = self._devices[slot.position] = slot.kind_of, booked, rest
        slot = slot.copy_without(devices[1], devices[2])
        node.narrow_amounts(slot, self._now, self._until)
        return slot


class _LastingView:
    """The lasting board for the jobs of one level: their present one, except on the nodes of the promise."""

    __slots__ = ("_lasting", "_promised", "_view", "board", "seen")

    def __init__(self, view: _PresentView, lasting: Board, promised: frozenset[int]) -> None:
        self.board, self.seen = view.board.overlay(), 0
        self._view, self._lasting, self._promised = view, lasting, promised
        for position in promised:
            self.update(position)

    def update(self, position: int) -> None:
        if position in self._promised:
            self.board.put(self._view.narrowed(self._lasting.slots[position]))
        else:
            self.board.mirror(self._view.board, position)
