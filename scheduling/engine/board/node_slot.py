"""What is left of one node while a cycle goes on: devices, CPU and memory, and who must keep away from it."""

from bisect import bisect_left, insort

from scheduling.engine.board.node_classes import NodeCapacity, NodeClass, Shared
from scheduling.engine.model import DeviceHold, Node, RankPlacement


class NodeSlot:
    """What is left of one node. `free`: kind -> ids of wholly free devices; `shared`: device id -> MiB taken of it;
    `compute`: measured use of devices, where known; `apart`: name -> ranks here that no other job of it may join."""

    __slots__ = (
        "apart",
        "compute",
        "cpu_milli",
        "free",
        "free_count",
        "kind_of",
        "memory_mb",
        "mould",
        "node",
        "position",
        "shared",
        "state",
    )

    def __init__(self, position: int, node: Node, mould: NodeClass) -> None:
        self.position = position
        self.node = node
        self.mould = mould
        self.cpu_milli = node.cpu_milli_free
        self.memory_mb = node.memory_mb_free
        self.free: dict[int, list[int]] = {}
        self.free_count = 0
        self.shared: dict[int, int] = {}
        self.compute: dict[int, float] = {}
        self.apart: dict[str, int] = {}
        # The devices that may be offered at all; shared by copies, never written after the board is built.
        self.kind_of: dict[int, int] = {}
        # As which the board has shelved it.
        self.state: NodeCapacity | None = None

    def copy(self) -> "NodeSlot":
        twin = NodeSlot.__new__(NodeSlot)
        twin.position, twin.node, twin.mould, twin.kind_of = self.position, self.node, self.mould, self.kind_of
        twin.cpu_milli, twin.memory_mb, twin.free_count = self.cpu_milli, self.memory_mb, self.free_count
        twin.free = {kind: ids[:] for kind, ids in self.free.items()}
        twin.shared = dict(self.shared) if self.shared else {}
        twin.apart = dict(self.apart) if self.apart else {}
        twin.compute, twin.state = self.compute, self.state
        return twin

    def take(self, rank: RankPlacement) -> None:
        self.cpu_milli -= rank.cpu_milli
        self.memory_mb -= rank.memory_mb
        if rank.apart:
            self.apart[rank.apart] = self.apart.get(rank.apart, 0) + 1
        for hold in rank.holds:
            if hold.device_id not in self.kind_of:
                continue  # out of service: it was not given back either
            if hold.device_id not in self.shared:
                self._take_free(hold.device_id)
            if hold.memory_mb is not None:
                self.shared[hold.device_id] = self.shared.get(hold.device_id, 0) + hold.memory_mb

    def release(self, rank: RankPlacement) -> None:
        """Give back what a rank holds. Devices that are out of service stay out of it."""
        self.cpu_milli += rank.cpu_milli
        self.memory_mb += rank.memory_mb
        if rank.apart in self.apart:
            self.apart[rank.apart] -= 1
        for hold in rank.holds:
            if hold.device_id in self.kind_of:
                self._release_device(hold)

    def withhold(self, rank: RankPlacement) -> None:
        self.cpu_milli -= rank.cpu_milli
        self.memory_mb -= rank.memory_mb
        if rank.apart:
            self.apart[rank.apart] = self.apart.get(rank.apart, 0) + 1
        for hold in rank.holds:
            if self._has_free(hold.device_id):
                self._take_free(hold.device_id)
            elif hold.memory_mb is not None and hold.device_id in self.shared:
                self.shared[hold.device_id] += hold.memory_mb
                continue
            self.shared.pop(hold.device_id, None)
            self.kind_of = {device_id: kind for device_id, kind in self.kind_of.items() if device_id != hold.device_id}

    def counted(self) -> tuple[tuple[int, ...], Shared]:
        """`State.free` and `State.shared` of what is left now."""
        free = self.free
        counts = tuple([len(free[kind]) if kind in free else 0 for kind in self.mould.kinds])
        if not self.shared:
            return counts, ()
        kind_of, compute = self.kind_of, self.compute
        return counts, tuple(sorted((kind_of[id], taken, compute.get(id, -1.0)) for id, taken in self.shared.items()))

    def seen(self) -> NodeCapacity:
        """What is left now, as a state that is on no board."""
        return NodeCapacity(self.mould, self.cpu_milli, self.memory_mb, *self.counted())

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
