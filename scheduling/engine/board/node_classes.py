"""What a node can be in the eyes of a request: its kinds of devices, and the states that no request can tell apart."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class DeviceClass(NamedTuple):
    """Devices that no request can tell apart. `memory_mb`, `numa`, `island` -1: unknown."""

    memory_mb: int
    model: str
    is_hot: bool = False
    numa: int = -1
    island: int = -1


# Shared devices: (kind's number, MiB taken, measured use of its processors or -1) of each, sorted.
Shared = tuple[tuple[int, int, float], ...]
# What it costs to place a request on a node in some state, see `placement.place`; the smallest is the best.
PlacementCost = tuple[int, int, int, int, int, int]


class DevicePick(NamedTuple):
    """`number` devices of the mould's kind at `at`: free ones, or (`taken`, `compute` as in `State`) shared."""

    at: int
    number: int
    taken: int = -1
    compute: float = -1.0


class DeviceChoice(NamedTuple):
    """Devices for each rank. `hot`: how many of them are; `misses`: ranks without the locality that they prefer;
    `opened_mb`: memory of the free devices among them. `free`, `shared`: what is left, as in `State`."""

    ranks: tuple[tuple[DevicePick, ...], ...]
    hot: int
    misses: int
    opened_mb: int
    free: tuple[int, ...]
    shared: Shared


class NodeClass:
    """What a node is made of, all of it free. `kinds`: its kinds' numbers, ascending; `made`: the kinds themselves.

    `groups`: "island" and "numa" -> which of `kinds` reach each other there; "cell" -> which share both.
    """

    __slots__ = ("cpu_milli", "devices", "groups", "kinds", "made", "memory_mb", "number")

    def __init__(
        self, number: int, devices: Sequence[int], cpu_milli: int, memory_mb: int, kinds: Sequence[DeviceClass]
    ) -> None:
        """`devices`: the number of the kind of each device."""
        self.number = number
        self.devices = len(devices)
        self.cpu_milli = cpu_milli
        self.memory_mb = memory_mb
        self.kinds = tuple(sorted(set(devices)))
        self.made = tuple(kinds[kind] for kind in self.kinds)
        self.groups = {
            "island": _grouped([kind.island for kind in self.made]),
            "numa": _grouped([kind.numa for kind in self.made]),
            "cell": _grouped([(kind.numa + 1) * 10_000 + kind.island + 1 for kind in self.made]),
        }


class NodeCapacity:
    """What is left of a node. Compared by identity: a board has one object for all nodes that are in it.

    `free`: free devices of each of the mould's kinds. `fragments`: see `fragmentation`, None until it is known.
    """

    __slots__ = ("cpu_milli", "fragments", "free", "memory_mb", "mould", "shared")

    def __init__(
        self,
        mould: NodeClass,
        cpu_milli: int,
        memory_mb: int,
        free: tuple[int, ...],
        shared: Shared,
    ) -> None:
        self.mould = mould
        self.cpu_milli = cpu_milli
        self.memory_mb = memory_mb
        self.free = free
        self.shared = shared
        self.fragments: float | None = None


class Scorer(Protocol):
    """How good it is to turn a node of one state into another; the higher the better. Coarse: equals are common."""

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int: ...


def _grouped(names: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Which positions have the same name; those without one are in no group."""
    return tuple(
        tuple(index for index, other in enumerate(names) if other == name) for name in sorted(set(names)) if name >= 0
    )
