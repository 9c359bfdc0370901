"""The free capacity of one node during a cycle: devices, CPU, memory, and the anti-affinity keys in use."""

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from typing import NamedTuple

from scheduling.engine.board.node_classes import NodeCapacity, NodeClass, Shared
from scheduling.engine.model import Device, DeviceHold, Node, RankPlacement


class NodeOffer(NamedTuple):
    """The initial capacity of a node. `kinds`: the numbers of its devices' kinds, sorted; the others as in NodeSlot."""

    kinds: tuple[int, ...]
    kind_of: dict[int, int]
    free: dict[int, list[int]]
    shared: dict[int, int]
    compute: dict[int, float]


def offer_of(devices: Sequence[Device], kinds: Sequence[int], with_unhealthy: bool, thermal: bool) -> NodeOffer:
    """Return the capacity of these devices. `kinds`: the number of the kind of each; the rest as in Board."""
    offer = NodeOffer(tuple(sorted(kinds)), {}, {}, {}, {})
    for device, kind in zip(devices, kinds, strict=True):
        if not (device.is_healthy or with_unhealthy) or (thermal and device.is_slowed):
            continue
        offer.kind_of[device.id] = kind
        if device.compute is not None:
            offer.compute[device.id] = device.compute
        if device.shared_mb:
            # A device that is held whole takes no sharer, even if `shared_mb` is set.
            if not device.exclusive:
                offer.shared[device.id] = device.shared_mb
        elif not device.exclusive:
            offer.free.setdefault(kind, []).append(device.id)
    for ids in offer.free.values():
        ids.sort()
    return offer


class NodeSlot:
    """The free capacity of one node. `free`: kind -> ids of wholly free devices; `shared`: device id -> MiB allocated;
    `compute`: measured use of devices, where known; `anti_affinity_counts`: key -> ranks here, which exclude other
    jobs."""

    __slots__ = (
        "anti_affinity_counts",
        "compute",
        "cpu_milli",
        "free",
        "free_count",
        "kind_of",
        "memory_mb",
        "node",
        "node_class",
        "position",
        "shared",
    )

    def __init__(self, position: int, node: Node, node_class: NodeClass, offer: NodeOffer) -> None:
        self.position = position
        self.node = node
        self.node_class = node_class
        self.cpu_milli = node.cpu_milli_free
        self.memory_mb = node.memory_mb_free
        self.free = {kind: ids[:] for kind, ids in offer.free.items()}
        self.free_count = sum([len(ids) for ids in offer.free.values()])
        self.shared = dict(offer.shared)
        self.anti_affinity_counts: dict[str, int] = {}
        # Shared by all slots of the node, and never changed.
        self.kind_of, self.compute = offer.kind_of, offer.compute

    def copy(self) -> "NodeSlot":
        twin = NodeSlot.__new__(NodeSlot)
        twin.position, twin.node, twin.node_class = self.position, self.node, self.node_class
        twin.cpu_milli, twin.memory_mb, twin.free_count = self.cpu_milli, self.memory_mb, self.free_count
        twin.free = {kind: ids[:] for kind, ids in self.free.items()}
        twin.shared = dict(self.shared) if self.shared else {}
        twin.anti_affinity_counts = dict(self.anti_affinity_counts) if self.anti_affinity_counts else {}
        twin.kind_of, twin.compute = self.kind_of, self.compute
        return twin

    def copy_without(self, device_ids: Collection[int], kind_of: dict[int, int]) -> "NodeSlot":
        """Return a copy on which these devices are out of service. `kind_of`: the other devices."""
        twin = NodeSlot.__new__(NodeSlot)
        twin.position, twin.node, twin.node_class = self.position, self.node, self.node_class
        twin.cpu_milli, twin.memory_mb = self.cpu_milli, self.memory_mb
        twin.free = {kind: [id for id in ids if id not in device_ids] for kind, ids in self.free.items()}
        twin.free_count = sum(map(len, twin.free.values()))
        twin.shared = {id: mb for id, mb in self.shared.items() if id not in device_ids} if self.shared else {}
        twin.anti_affinity_counts = dict(self.anti_affinity_counts) if self.anti_affinity_counts else {}
        twin.kind_of, twin.compute = kind_of, self.compute
        return twin

    def allocate(self, rank: RankPlacement) -> None:
        self.cpu_milli -= rank.cpu_milli
        self.memory_mb -= rank.memory_mb
        if rank.apart:
            self.anti_affinity_counts[rank.apart] = self.anti_affinity_counts.get(rank.apart, 0) + 1
        for hold in rank.holds:
            if hold.device_id not in self.kind_of:
                continue  # out of service, so it was not released either
            if hold.device_id not in self.shared:
                self._take_free(hold.device_id)
            if hold.memory_mb is not None:
                self.shared[hold.device_id] = self.shared.get(hold.device_id, 0) + hold.memory_mb

    def release(self, rank: RankPlacement) -> None:
        """Release what a rank holds. Devices that are out of service stay out of it."""
        self.cpu_milli += rank.cpu_milli
        self.memory_mb += rank.memory_mb
        if rank.apart in self.anti_affinity_counts:
            self.anti_affinity_counts[rank.apart] -= 1
        for hold in rank.holds:
            if hold.device_id in self.kind_of:
                self._release_device(hold)

    def withhold(self, rank: RankPlacement) -> None:
        self.cpu_milli -= rank.cpu_milli
        self.memory_mb -= rank.memory_mb
        if rank.apart:
            self.anti_affinity_counts[rank.apart] = self.anti_affinity_counts.get(rank.apart, 0) + 1
        for hold in rank.holds:
            if self._has_free(hold.device_id):
                self._take_free(hold.device_id)
            elif hold.memory_mb is not None and hold.device_id in self.shared:
                self.shared[hold.device_id] += hold.memory_mb
                continue
            self.shared.pop(hold.device_id, None)
            self.kind_of = {device_id: kind for device_id, kind in self.kind_of.items() if device_id != hold.device_id}

    def remove_devices(self, device_ids: Collection[int]) -> None:
        """Take devices out of service on this slot, whether they are free or not."""
        for kind, ids in self.free.items():
            remaining = [device_id for device_id in ids if device_id not in device_ids]
            self.free_count -= len(ids) - len(remaining)
            self.free[kind] = remaining
        if self.shared:
            self.shared = {device_id: mb for device_id, mb in self.shared.items() if device_id not in device_ids}
        self.kind_of = {device_id: kind for device_id, kind in self.kind_of.items() if device_id not in device_ids}

    def counted(self) -> tuple[tuple[int, ...], Shared]:
        """Return `NodeCapacity.free` and `NodeCapacity.shared` of the present state."""
        free = self.free
        counts = tuple([len(free[kind]) if kind in free else 0 for kind in self.node_class.kinds])
        if not self.shared:
            return counts, ()
        kind_of, compute = self.kind_of, self.compute
        return counts, tuple(
            sorted((kind_of[id], used_mb, compute.get(id, -1.0)) for id, used_mb in self.shared.items())
        )

    def current_capacity(self) -> NodeCapacity:
        """Return the present state, as an object that is on no board."""
        return NodeCapacity(self.node_class, self.cpu_milli, self.memory_mb, *self.counted())

    def _has_free(self, device_id: int) -> bool:
        return device_id in self.kind_of and device_id in self.free.get(self.kind_of[device_id], ())

    def _take_free(self, device_id: int) -> None:
        ids = self.free[self.kind_of[device_id]]
        del ids[bisect_left(ids, device_id)]
        self.free_count -= 1

    def _release_device(self, hold: DeviceHold) -> None:
        if hold.memory_mb is not None:
            remaining_mb = self.shared.pop(hold.device_id, 0) - hold.memory_mb
            if remaining_mb > 0:
                self.shared[hold.device_id] = remaining_mb
                return
        ids = self.free.setdefault(self.kind_of[hold.device_id], [])
        if hold.device_id not in ids:
            insort(ids, hold.device_id)
            self.free_count += 1
