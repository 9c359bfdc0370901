"""The what-if scratch of one cycle: what is free on each node, indexed by how many devices are free."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduling.engine.model import Device, DeviceHold, Node, RankPlacement


class Kind(NamedTuple):
    """Devices that no request can tell apart. `memory_mb` -1: unknown."""

    memory_mb: int
    model: str


class Slot:
    """What is left of one node. `free`: kind -> ids of wholly free devices; `shared`: device id -> MiB taken of it."""

    __slots__ = ("cpu_milli", "family", "free", "free_count", "kind_of", "memory_mb", "node", "position", "shared")

    def __init__(self, position: int, node: Node) -> None:
        self.position = position
        self.node = node
        self.cpu_milli = node.cpu_milli_free
        self.memory_mb = node.memory_mb_free
        self.family = 0
        self.free: dict[int, list[int]] = {}
        self.free_count = 0
        self.shared: dict[int, int] = {}
        # The devices that may be offered at all; shared by copies, never written after the board is built.
        self.kind_of: dict[int, int] = {}

    def copy(self) -> "Slot":
        twin = Slot.__new__(Slot)
        twin.position, twin.node, twin.family, twin.kind_of = self.position, self.node, self.family, self.kind_of
        twin.cpu_milli, twin.memory_mb, twin.free_count = self.cpu_milli, self.memory_mb, self.free_count
        twin.free = {kind: ids[:] for kind, ids in self.free.items()}
        twin.shared = dict(self.shared) if self.shared else {}
        return twin

    def take(self, rank: RankPlacement) -> None:
        self.cpu_milli -= rank.cpu_milli
        self.memory_mb -= rank.memory_mb
        for device_id, memory_mb in ((hold.device_id, hold.memory_mb) for hold in rank.holds):
            if device_id not in self.shared:
                self._take_free(device_id)
            if memory_mb is not None:
                self.shared[device_id] = self.shared.get(device_id, 0) + memory_mb

    def release(self, rank: RankPlacement) -> None:
        """Give back what a rank holds. Devices that are out of service stay out of it."""
        self.cpu_milli += rank.cpu_milli
        self.memory_mb += rank.memory_mb
        for hold in rank.holds:
            if hold.device_id in self.kind_of:
                self._release_device(hold)

    def withhold(self, rank: RankPlacement) -> None:
        self.cpu_milli -= rank.cpu_milli
        self.memory_mb -= rank.memory_mb
        for hold in rank.holds:
            if self._has_free(hold.device_id):
                self._take_free(hold.device_id)
            elif hold.memory_mb is not None and hold.device_id in self.shared:
                self.shared[hold.device_id] += hold.memory_mb
                continue
            self.shared.pop(hold.device_id, None)
            self.kind_of = {device_id: kind for device_id, kind in self.kind_of.items() if device_id != hold.device_id}

    def _has_free(self, device_id: int) -> bool:
        return device_id in self.kind_of and device_id in self.free.get(self.kind_of[device_id], ())

    def _take_free(self, device_id: int) -> None:
        ids = self.free[self.kind_of[device_id]]
        del ids[bisect_left(ids, device_id)]
        self.free_count -= 1

    def _release_device(self, hold: DeviceHold) -> None:
        if hold.memory_mb is not None:
            left = self.shared.pop(hold.device_id, 0) - hold.memory_mb
            if left > 0:
                self.shared[hold.device_id] = left
                return
        ids = self.free.setdefault(self.kind_of[hold.device_id], [])
        if hold.device_id not in ids:
            insort(ids, hold.device_id)
            self.free_count += 1


class Board:
    """All nodes of a snapshot, in the order of their ids; only those that may get work lie on the shelves.

    `families[f]`: the kinds that the nodes of family f have. `shelves[f][n]`: positions of its nodes with n devices
    free. `sharing`: positions of the nodes where some device is shared.
    """

    __slots__ = ("families", "kinds", "sharing", "shelves", "slots", "usable")

    def __init__(self, nodes: Sequence[Node], *, with_closed: bool = False, with_unhealthy: bool = False) -> None:
        """Shapes: nodes in any order. `with_closed`, `with_unhealthy`: what if those were in service as well."""
        ordered = sorted(nodes, key=_node_id)
        kinds_by_node = [[kind_of(device) for device in node.devices] for node in ordered]
        self.kinds: tuple[Kind, ...] = tuple(sorted({kind for kinds in kinds_by_node for kind in kinds}))
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        numbered = [[numbers[kind] for kind in kinds] for kinds in kinds_by_node]
        self.slots = [
            _slot(position, node, numbered[position], with_unhealthy) for position, node in enumerate(ordered)
        ]
        self.usable = [with_closed or (node.is_open and node.is_online) for node in ordered]
        kinds_on = [tuple(sorted(set(kinds))) for kinds in numbered]
        self.families: tuple[tuple[int, ...], ...] = tuple(sorted(set(kinds_on)))
        family_numbers = {kinds: number for number, kinds in enumerate(self.families)}
        self.shelves: list[list[list[int]]] = [[[]] for _ in self.families]
        self.sharing: list[int] = []
        for slot, kinds in zip(self.slots, kinds_on, strict=True):
            slot.family = family_numbers[kinds]
            shelves = self.shelves[slot.family]
            shelves.extend([] for _ in range(len(slot.node.devices) + 1 - len(shelves)))
            if self.usable[slot.position]:
                self._shelve(slot)

    def copy(self) -> "Board":
        twin = Board.__new__(Board)
        twin.kinds, twin.families, twin.usable = self.kinds, self.families, self.usable
        twin.slots = [slot.copy() for slot in self.slots]
        twin.shelves = [[shelf[:] for shelf in shelves] for shelves in self.shelves]
        twin.sharing = self.sharing[:]
        return twin

    def slot_of(self, node_id: int) -> Slot | None:
        position = bisect_left(self.slots, node_id, key=_slot_node_id)
        if position == len(self.slots) or self.slots[position].node.id != node_id:
            return None
        return self.slots[position]

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

    def put(self, slot: Slot) -> None:
        """Replace a node's slot by another view of the same node."""
        self._unshelve(self.slots[slot.position])
        self.slots[slot.position] = slot
        self._shelve(slot)

    def _shelve(self, slot: Slot) -> None:
        if self.usable[slot.position]:
            insort(self.shelves[slot.family][slot.free_count], slot.position)
            if slot.shared:
                insort(self.sharing, slot.position)

    def _unshelve(self, slot: Slot) -> None:
        if self.usable[slot.position]:
            shelf = self.shelves[slot.family][slot.free_count]
            del shelf[bisect_left(shelf, slot.position)]
            if slot.shared:
                del self.sharing[bisect_left(self.sharing, slot.position)]


def kind_of(device: Device) -> Kind:
    return Kind(-1 if device.memory_mb is None else device.memory_mb, device.model)


def _node_id(node: Node) -> int:
    return node.id


def _slot_node_id(slot: Slot) -> int:
    return slot.node.id


def _slot(position: int, node: Node, kinds: list[int], with_unhealthy: bool) -> Slot:
    slot = Slot(position, node)
    for device, kind in zip(node.devices, kinds, strict=True):
        if not (device.is_healthy or with_unhealthy):
            continue
        slot.kind_of[device.id] = kind
        if device.shared_mb:
            # A device that is held whole takes no sharer, whatever the column beside it says.
            if not device.exclusive:
                slot.shared[device.id] = device.shared_mb
        elif not device.exclusive:
            slot.free.setdefault(kind, []).append(device.id)
            slot.free_count += 1
    for ids in slot.free.values():
        ids.sort()
    return slot
