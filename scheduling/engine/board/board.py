"""The what-if scratch of one cycle: what is free on each node, indexed by how many devices are free."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from scheduling.engine.board.node_classes import DeviceClass, NodeCapacity, NodeClass, Scorer, Shared
from scheduling.engine.board.node_index import NodeIndex
from scheduling.engine.board.node_slot import NodeSlot
from scheduling.engine.model import Device, Node, RankPlacement, RunningJob

# What a device is made of: (memory, model, is it hot, NUMA node, NVLink island).
Raw = tuple[int | None, str, bool, int | None, int | None]

__all__ = ["Board", "DeviceClass", "NodeSlot", "kind_of"]


class Board:
    """All nodes of a snapshot, in the order of their ids; only those that may get work lie on the shelves.

    `shelves[n]`: state -> positions of the nodes in that state, n devices free. `sharing`: the same for all nodes where
    some device is shared. `scorer`: what placements are chosen by; None: by the tightest fit.
    """

    __slots__ = (
        "_index",
        "_positions",
        "_states",
        "has_taints",
        "kinds",
        "scorer",
        "sharing",
        "shelves",
        "slots",
        "usable",
    )

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        with_closed: bool = False,
        with_unhealthy: bool = False,
        thermal: bool = True,
        running: Iterable[RunningJob] = (),
    ) -> None:
        """Shapes: nodes in any order. `with_closed`, `with_unhealthy`: what if those were in service as well.
        `thermal` False: heat is overlooked. `running`: jobs that keep others of their `apart` name off their nodes."""
        ordered = sorted(nodes, key=_node_id)
        raw = [[_raw(device, thermal) for device in node.devices] for node in ordered]
        known = {one: _kind(one) for one in {one for row in raw for one in row}}
        # Kinds are numbered in the order in which they are offered: hot devices last, large ones late.
        self.kinds: tuple[DeviceClass, ...] = tuple(sorted(set(known.values()), key=_offer))
        numbers = {one: self.kinds.index(kind) for one, kind in known.items()}
        moulds: dict[tuple[tuple[int, ...], int, int], NodeClass] = {}
        self.slots: list[NodeSlot] = []
        for position, (node, row) in enumerate(zip(ordered, raw, strict=True)):
            kinds = [numbers[one] for one in row]
            key = (tuple(sorted(kinds)), node.cpu_milli, node.memory_mb)
            if key not in moulds:
                moulds[key] = NodeClass(len(moulds), *key, self.kinds)
            slot = NodeSlot(position, node, moulds[key])
            _fill(slot, kinds, with_unhealthy, thermal)
            self.slots.append(slot)
        self._positions = {node.id: position for position, node in enumerate(ordered)}
        self.usable = [with_closed or (node.is_open and node.is_online) for node in ordered]
        self.scorer: Scorer | None = None
        self.has_taints = any([node.taints for node in ordered])
        self._index: NodeIndex | None = None
        self._states: dict[tuple[object, ...], NodeCapacity] = {}
        most = max((len(node.devices) for node in ordered), default=0)
        self.shelves: list[dict[NodeCapacity, list[int]]] = [{} for _ in range(most + 1)]
        self.sharing: dict[NodeCapacity, list[int]] = {}
        self._keep_apart(running)
        for slot in self.slots:
            self._shelve(slot)

    def copy(self) -> "Board":
        twin = Board.__new__(Board)
        twin.kinds, twin.usable, twin.scorer = self.kinds, self.usable, self.scorer
        twin.has_taints, twin._index = self.has_taints, self._index
        twin._states, twin._positions = self._states, self._positions
        twin.slots = [slot.copy() for slot in self.slots]
        twin.shelves = [{state: places[:] for state, places in shelf.items()} for shelf in self.shelves]
        twin.sharing = {state: places[:] for state, places in self.sharing.items()}
        return twin

    @property
    def index(self) -> NodeIndex:
        """The nodes by label and taint; built when a request first asks for it."""
        if self._index is None:
            self._index = NodeIndex([slot.node for slot in self.slots])
        return self._index

    def slot_of(self, node_id: int) -> NodeSlot | None:
        position = self._positions.get(node_id)
        return None if position is None else self.slots[position]

    def take(self, ranks: Iterable[RankPlacement]) -> None:
        for rank in ranks:
            slot = self.slot_of(rank.node_id)
            if slot is not None:
                self._unshelve(slot)
                slot.take(rank)
                self._shelve(slot)

    def release(self, ranks: Iterable[RankPlacement]) -> None:
        """Give back what a job holds; ranks on nodes that the snapshot does not know are passed over."""
        for rank in ranks:
            slot = self.slot_of(rank.node_id)
            if slot is not None:
                self._unshelve(slot)
                slot.release(rank)
                self._shelve(slot)

    def withhold(self, ranks: Iterable[RankPlacement]) -> None:
        """Take what is promised though it may not be free yet. Whole devices leave the service of this board, so that
        they stay taken when their present holders are released on it; CPU and memory may go below zero until then."""
        for rank in ranks:
            slot = self.slot_of(rank.node_id)
            if slot is not None:
                self._unshelve(slot)
                slot.withhold(rank)
                self._shelve(slot)

    def put(self, slot: NodeSlot) -> None:
        """Replace a node's slot by another view of the same node."""
        self._unshelve(self.slots[slot.position])
        self.slots[slot.position] = slot
        self._shelve(slot)

    def state(
        self,
        mould: NodeClass,
        cpu_milli: int,
        memory_mb: int,
        free: tuple[int, ...],
        shared: Shared,
    ) -> NodeCapacity:
        """The one state with these values; equal states are the same object, also on copies of the board."""
        key = (mould.number, cpu_milli, memory_mb, free, shared)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = NodeCapacity(mould, cpu_milli, memory_mb, free, shared)
        return found

    def _keep_apart(self, running: Iterable[RunningJob]) -> None:
        for job in running:
            for rank in job.ranks:
                slot = self.slot_of(rank.node_id) if rank.apart else None
                if slot is not None:
                    slot.apart[rank.apart] = slot.apart.get(rank.apart, 0) + 1

    def _shelve(self, slot: NodeSlot) -> None:
        if not self.usable[slot.position]:
            return
        state = slot.state = self.state(slot.mould, slot.cpu_milli, slot.memory_mb, *slot.counted())
        _lay(self.shelves[slot.free_count], state, slot.position)
        if slot.shared:
            _lay(self.sharing, state, slot.position)

    def _unshelve(self, slot: NodeSlot) -> None:
        state = slot.state
        if state is not None and self.usable[slot.position]:
            _lift(self.shelves[sum(state.free)], state, slot.position)
            if state.shared:
                _lift(self.sharing, state, slot.position)


def kind_of(device: Device) -> DeviceClass:
    """What a device is, however hot it is and wherever it sits."""
    return DeviceClass(_or_unknown(device.memory_mb), device.model)


def _raw(device: Device, thermal: bool) -> Raw:
    return device.memory_mb, device.model, thermal and device.is_hot, device.numa, device.island


def _kind(raw: Raw) -> DeviceClass:
    memory_mb, model, is_hot, numa, island = raw
    return DeviceClass(_or_unknown(memory_mb), model, is_hot, _or_unknown(numa), _or_unknown(island))


def _or_unknown(value: int | None) -> int:
    return -1 if value is None else value


def _offer(kind: DeviceClass) -> tuple[bool, DeviceClass]:
    return kind.is_hot, kind


def _node_id(node: Node) -> int:
    return node.id


def _fill(slot: NodeSlot, kinds: Sequence[int], with_unhealthy: bool, thermal: bool) -> None:
    for device, kind in zip(slot.node.devices, kinds, strict=True):
        if not (device.is_healthy or with_unhealthy) or (thermal and device.is_slowed):
            continue
        slot.kind_of[device.id] = kind
        if device.compute is not None:
            slot.compute[device.id] = device.compute
        if device.shared_mb:
            # A device that is held whole takes no sharer, whatever the column beside it says.
            if not device.exclusive:
                slot.shared[device.id] = device.shared_mb
        elif not device.exclusive:
            slot.free.setdefault(kind, []).append(device.id)
            slot.free_count += 1
    for ids in slot.free.values():
        ids.sort()


def _lay(shelf: dict[NodeCapacity, list[int]], state: NodeCapacity, position: int) -> None:
    places = shelf.get(state)
    if places is None:
        shelf[state] = [position]
    else:
        insort(places, position)


def _lift(shelf: dict[NodeCapacity, list[int]], state: NodeCapacity, position: int) -> None:
    places = shelf[state]
    if len(places) == 1:
        del shelf[state]
    else:
        del places[bisect_left(places, position)]
