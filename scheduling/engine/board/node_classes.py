"""Node classes as a request sees them: their kinds of devices, and the states that no request can tell apart."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class DeviceClass(NamedTuple):
    """Devices that no request can tell apart. `memory_mb`, `numa`, `island` -1: unknown. `is_avoided`: a soft booking
    wants it."""

    memory_mb: int
    model: str
    is_hot: bool = False
    numa: int = -1
    island: int = -1
    is_avoided: bool = False


# One hot device outweighs all that are only avoided.
PER_HOT = 1024

# Shared devices: (kind's number, MiB taken, measured use of its processors or -1) of each, sorted.
Shared = tuple[tuple[int, int, float], ...]
# The cost of placing a request on a node in some state, see `placement.place`; the smallest is the best.
PlacementCost = tuple[int, int, int, int, int, int]


class DevicePick(NamedTuple):
    """`number` devices of the node class's kind at index `at`: free ones, or shared ones with `allocated_mb` and
    `compute` as in `NodeCapacity`."""

    at: int
    number: int
    allocated_mb: int = -1
    compute: float = -1.0


class DeviceChoice(NamedTuple):
    """Devices for each rank. `hot`: how many of them are hot, times PER_HOT, plus how many are avoided; `misses`: ranks
    without the locality that they prefer;
    `opened_mb`: memory of the free devices among them. `free`, `shared`: the rest, as in `NodeCapacity`."""

    ranks: tuple[tuple[DevicePick, ...], ...]
    hot: int
    misses: int
    opened_mb: int
    free: tuple[int, ...]
    shared: Shared


class NodeClass:
    """The hardware of a node, all of it free. `kinds`: its kinds' numbers, ascending; `device_classes`: the kinds.

    `groups`: "island" and "numa" -> which of `kinds` are near each other there; "cell" -> which share both.
    """

    __slots__ = ("cpu_milli", "device_classes", "devices", "groups", "kinds", "memory_mb", "number")

    def __init__(
        self, number: int, devices: Sequence[int], cpu_milli: int, memory_mb: int, kinds: Sequence[DeviceClass]
    ) -> None:
        """`devices`: the number of the kind of each device."""
        self.number = number
        self.devices = len(devices)
        self.cpu_milli = cpu_milli
        self.memory_mb = memory_mb
        self.kinds = tuple(sorted(set(devices)))
        self.device_classes = tuple(kinds[kind] for kind in self.kinds)
        self.groups = {
            "island": _grouped([kind.island for kind in self.device_classes]),
            "numa": _grouped([kind.numa for kind in self.device_classes]),
            "cell": _grouped([(kind.numa + 1) * 10_000 + kind.island + 1 for kind in self.device_classes]),
        }


# (GPUs per rank, ranks, node class, its free and shared devices) -> the devices that so many ranks may get there.
Choices = dict[tuple[int, int, NodeClass, tuple[int, ...], Shared], tuple[DeviceChoice, ...]]


class NodeCapacity:
    """The free capacity of a node. Compared by identity: a board has one object for all nodes in the same state.

    `free`: free devices of each of the node class's kinds. `fragments`: see `fragmentation`, None until computed.
    """

    __slots__ = ("cpu_milli", "fragments", "free", "memory_mb", "node_class", "shared")

    def __init__(
        self,
        node_class: NodeClass,
        cpu_milli: int,
        memory_mb: int,
        free: tuple[int, ...],
        shared: Shared,
    ) -> None:
        self.node_class = node_class
        self.cpu_milli = cpu_milli
        self.memory_mb = memory_mb
        self.free = free
        self.shared = shared
        self.fragments: float | None = None


class Scorer(Protocol):
    """Rates the change of a node from one state to another; the higher the better. Coarse: ties are common."""

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int: ...


def _grouped(names: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return which positions have the same name; those without a name are in no group."""
    return tuple(
        tuple(index for index, other in enumerate(names) if other == name) for name in sorted(set(names)) if name >= 0
    )
