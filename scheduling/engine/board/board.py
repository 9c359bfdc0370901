"""The working copy of one cycle: the free capacity of each node, indexed by its number of free devices."""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from scheduling.engine.board.node_classes import Choices, DeviceClass, NodeCapacity, NodeClass, Scorer, Shared
from scheduling.engine.board.node_index import NodeIndex
from scheduling.engine.board.node_slot import NodeSlot, offer_of
from scheduling.engine.model import Device, Node, RankPlacement, RunningJob

# The properties of a device: (memory, model, is it hot, NUMA node, NVLink island, is it avoided).
Raw = tuple[int | None, str, bool, int | None, int | None, bool]

__all__ = ["Board", "DeviceClass", "NodeSlot", "kind_of"]


class Board:
    """The nodes of a snapshot, in the order of their ids; only those that may get work are on the shelves.

    `shelves[n]`: state -> positions of the nodes in that state, with n devices free. `sharing`: the same for all nodes
    with a shared device. `scorer`: rates placements; None: the tightest fit wins.
    """

    __slots__ = (
        "_index",
        "_positions",
        "_shelved",
        "_states",
        "choices",
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
        avoided: Collection[int] = (),
    ) -> None:
        """Index the nodes, in any order. `with_closed`, `with_unhealthy`: as if those were in service as well.
        `thermal` False: ignore heat. `running`: jobs that keep others with their anti-affinity key off their nodes.
        `avoided`: devices that are offered last, before hot ones."""
        ordered = sorted(nodes, key=_node_id)
        raw = [_raw_devices(node, thermal, avoided) for node in ordered]
        kind_by_properties = {entry: _kind(entry) for entry in set().union(*raw)}
        # Kinds are numbered in the order in which they are offered: hot devices last, large ones late.
        self.kinds: tuple[DeviceClass, ...] = tuple(sorted(set(kind_by_properties.values()), key=_offer))
        numbers = {entry: self.kinds.index(kind) for entry, kind in kind_by_properties.items()}
        node_classes: dict[tuple[tuple[int, ...], int, int], NodeClass] = {}
        self.slots: list[NodeSlot] = []
        for position, (node, row) in enumerate(zip(ordered, raw, strict=True)):
            basis = [numbers[entry] for entry in row], with_unhealthy, thermal
            offer = node.derived("offer", basis, partial(offer_of, node.devices, *basis))
            key = (offer.kinds, node.cpu_milli, node.memory_mb)
            if key not in node_classes:
                node_classes[key] = NodeClass(len(node_classes), *key, self.kinds)
            self.slots.append(NodeSlot(position, node, node_classes[key], offer))
        self._positions = {node.id: position for position, node in enumerate(ordered)}
        self.usable = [with_closed or (node.is_open and node.is_online) for node in ordered]
        self.scorer: Scorer | None = None
        self.has_taints = any([node.taints for node in ordered])
        self._index: NodeIndex | None = None
        self._states: dict[tuple[object, ...], NodeCapacity] = {}
        # What requests that want the same devices may get on a node, see `Shape.choices`; shared by copies.
        self.choices: dict[tuple[object, ...], Choices] = {}
        max_devices = max((len(node.devices) for node in ordered), default=0)
        self.shelves: list[dict[NodeCapacity, list[int]]] = [{} for _ in range(max_devices + 1)]
        self.sharing: dict[NodeCapacity, list[int]] = {}
        # The state under which each node is shelved; None: it is not.
        self._shelved: list[NodeCapacity | None] = [None] * len(self.slots)
        self._count_anti_affinity(running)
        for slot in self.slots:
            self._shelve(slot)

    def copy(self) -> "Board":
        twin = self.overlay()
        twin.slots = [slot.copy() for slot in self.slots]
        return twin

    def overlay(self) -> "Board":
        """Return a board that shares the nodes of this one. `put` replaces a node on one of them; after another change
        of a shared node, `mirror` must show it on the other board before that is used."""
        twin = Board.__new__(Board)
        twin.kinds, twin.usable, twin.scorer = self.kinds, self.usable, self.scorer
        twin.has_taints, twin._index = self.has_taints, self._index
        twin._states, twin._positions, twin.choices = self._states, self._positions, self.choices
        twin.slots, twin._shelved = self.slots[:], self._shelved[:]
        twin.shelves = [{state: places[:] for state, places in shelf.items()} for shelf in self.shelves]
        twin.sharing = {state: places[:] for state, places in self.sharing.items()}
        return twin

    def restricted(self, slots: Iterable[NodeSlot]) -> "Board":
        """Return a board that offers only these nodes, in these states. The slots become its own."""
        twin = Board.__new__(Board)
        twin.kinds, twin.scorer = self.kinds, self.scorer
        twin.has_taints, twin._index = self.has_taints, self._index
        twin._states, twin._positions, twin.choices = self._states, self._positions, self.choices
        twin.shelves, twin.sharing = [{} for _ in self.shelves], {}
        twin.slots, twin.usable = self.slots[:], [False] * len(self.slots)
        twin._shelved = [None] * len(self.slots)
        for slot in slots:
            twin.slots[slot.position] = slot
            twin.usable[slot.position] = self.usable[slot.position]
            twin._shelve(slot)
        return twin

    @property
    def index(self) -> NodeIndex:
        """Return the nodes by label and taint; built when a request first needs it."""
        if self._index is None:
            self._index = NodeIndex([slot.node for slot in self.slots])
        return self._index

    def slot_of(self, node_id: int) -> NodeSlot | None:
        position = self._positions.get(node_id)
        return None if position is None else self.slots[position]

    def allocate(self, ranks: Iterable[RankPlacement]) -> None:
        for rank in ranks:
            slot = self.slot_of(rank.node_id)
            if slot is not None:
                self._unshelve(slot.position)
                slot.allocate(rank)
                self._shelve(slot)

    def release(self, ranks: Iterable[RankPlacement]) -> None:
        """Release what a job holds; skip ranks on nodes that the snapshot does not know."""
        for rank in ranks:
            slot = self.slot_of(rank.node_id)
            if slot is not None:
                self._unshelve(slot.position)
                slot.release(rank)
                self._shelve(slot)

    def withhold(self, ranks: Iterable[RankPlacement]) -> None:
        """Take what is promised though it may not be free yet.

        Whole devices leave the service of this board, so they stay taken when their present holders are released on it.
        CPU and memory may go below zero until then.
        """
        for rank in ranks:
            slot = self.slot_of(rank.node_id)
            if slot is not None:
                self._unshelve(slot.position)
                slot.withhold(rank)
                self._shelve(slot)

    def put(self, slot: NodeSlot) -> None:
        """Replace a node's slot by another view of the same node, or shelve it anew after a change."""
        self._unshelve(slot.position)
        self.slots[slot.position] = slot
        self._shelve(slot)

    def mirror(self, other: "Board", position: int) -> None:
        """Share a node with another board of the same nodes, in its present state there."""
        slot = self.slots[position] = other.slots[position]
        state = other._shelved[position]
        if state is not self._shelved[position]:
            self._unshelve(position)
            self._lay(slot, state)

    def shelved_state(self, position: int) -> NodeCapacity | None:
        """Return the state under which a node is shelved; None: it may not get work."""
        return self._shelved[position]

    def state(
        self,
        node_class: NodeClass,
        cpu_milli: int,
        memory_mb: int,
        free: tuple[int, ...],
        shared: Shared,
    ) -> NodeCapacity:
        """Return the one state with these values; equal states are the same object, also on copies of the board."""
        key = (node_class.number, cpu_milli, memory_mb, free, shared)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = NodeCapacity(node_class, cpu_milli, memory_mb, free, shared)
        return state

    def _count_anti_affinity(self, running: Iterable[RunningJob]) -> None:
        for job in running:
            for rank in job.ranks:
                slot = self.slot_of(rank.node_id) if rank.apart else None
                if slot is not None:
                    slot.anti_affinity_counts[rank.apart] = slot.anti_affinity_counts.get(rank.apart, 0) + 1

    def _shelve(self, slot: NodeSlot) -> None:
        if self.usable[slot.position]:
            self._lay(slot, self.state(slot.node_class, slot.cpu_milli, slot.memory_mb, *slot.counted()))

    def _lay(self, slot: NodeSlot, state: NodeCapacity | None) -> None:
        self._shelved[slot.position] = state
        if state is not None:
            _lay(self.shelves[slot.free_count], state, slot.position)
            if slot.shared:
                _lay(self.sharing, state, slot.position)

    def _unshelve(self, position: int) -> None:
        state = self._shelved[position]
        if state is not None:
            _lift(self.shelves[sum(state.free)], state, position)
            if state.shared:
                _lift(self.sharing, state, position)


def kind_of(device: Device) -> DeviceClass:
    """Return the class of a device, ignoring its heat and its location."""
    return DeviceClass(_or_unknown(device.memory_mb), device.model)


def _raw_devices(node: Node, thermal: bool, avoided: Collection[int]) -> list[Raw]:
    avoided = [device.id for device in node.devices if device.id in avoided] if avoided else []
    return node.derived("raw", (thermal, avoided), lambda: [_raw(device, thermal, avoided) for device in node.devices])


def _raw(device: Device, thermal: bool, avoided: Collection[int]) -> Raw:
    is_hot, is_avoided = thermal and device.is_hot, device.id in avoided
    return device.memory_mb, device.model, is_hot, device.numa, device.island, is_avoided


def _kind(raw: Raw) -> DeviceClass:
    memory_mb, model, is_hot, numa, island, is_avoided = raw
    return DeviceClass(_or_unknown(memory_mb), model, is_hot, _or_unknown(numa), _or_unknown(island), is_avoided)


def _or_unknown(value: int | None) -> int:
    return -1 if value is None else value


def _offer(kind: DeviceClass) -> tuple[bool, bool, DeviceClass]:
    return kind.is_hot, kind.is_avoided, kind


def _node_id(node: Node) -> int:
    return node.id


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
