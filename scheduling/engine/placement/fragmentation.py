"""Scores placements by how much of the free capacity they spoil for the request mix that the cluster serves."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import floor
from typing import NamedTuple

from scheduling.engine.board.board import Board
from scheduling.engine.board.node_classes import DeviceClass, NodeCapacity, NodeClass, Shared
from scheduling.engine.board.shapes import is_suitable, rank_counts, share_mb
from scheduling.engine.model import Policy, Request

RequestMix = Iterable[tuple[Request, float]]

# Scores are whole 25ths of a GPU. Coarse on purpose: smaller differences are ties, and ties go to the first node, so
# that nodes fill up one after the other. (Measured on the openb traces: 10ths to 100ths do alike; exact scores lose
# up to 0.7 percent of the GPUs.)
_STEPS_PER_GPU = 25


class MixEntry(NamedTuple):
    """A request of the mix: its part of all requests, and the needs of one of its ranks on one node.

    `share_mb` None: `gpus` whole devices of `kinds`; else a part of one.
    """

    weight: float
    gpus: int
    share_mb: int | None
    cpu_milli: int
    memory_mb: int
    kinds: frozenset[int]


class Served(NamedTuple):
    """The entries that a node's CPU and memory suffice for, by the devices that they need. `by_gpus[n]`: the weight of
    those content with n free devices; `shared[i]`: of those content with less than `shares_mb[i]`, ascending."""

    by_gpus: list[float]
    shares_mb: list[int]
    shared: list[float]


class Fragmentation:
    """A `Scorer`: how much less of the free GPUs would be lost to the mix after a placement than before it.

    The fragmentation-gradient idea of FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), with two terms
    more. All are in GPUs, so they add up:

    lost(node) = sum over the mix of weight x the free GPUs of the node that this request cannot use there
               + the GPUs that its free CPU, or its free memory, is short of serving
               - the sum over its free GPUs of (pressure of their kind - 1)

    Short of serving: a GPU of the mix comes with so much CPU (the mean of the mix, but no more than the node has per
    GPU), so free CPU below that many strands GPUs. Pressure: if each request is spread evenly over the devices that
    suit it, the demand per device of a kind over the mean of all kinds; devices that few requests can do without are
    used last.
    """

    def __init__(self, request_mix: RequestMix, board: Board, policy: Policy) -> None:
        self._limits_mb = [floor(max(kind.memory_mb, 0) * policy.load_ceiling_shared) for kind in board.kinds]
        entries = _entries(tuple(request_mix), board.kinds, len(board.shelves) - 1, policy)
        gpus = sum(entry.weight * self._size(entry) for entry in entries) or 1.0
        self._cpu_per_gpu = sum(entry.weight * entry.cpu_milli for entry in entries) / gpus
        self._memory_per_gpu = sum(entry.weight * entry.memory_mb for entry in entries) / gpus
        self._value = [pressure - 1.0 for pressure in self._pressures(board, entries)]
        all_entries = [*entries, *self._imagined(board)]
        total = sum(entry.weight for entry in all_entries)
        self._mix_entries = [entry._replace(weight=entry.weight / total) for entry in all_entries]
        self._cpus = sorted({entry.cpu_milli for entry in self._mix_entries})
        self._memories = sorted({entry.memory_mb for entry in self._mix_entries})
        self._groups: dict[NodeClass, list[tuple[tuple[int, ...], list[MixEntry]]]] = {}
        # The devices of a state, and how many CPU and memory sizes of the mix it serves -> `_lost_to_mix`.
        self._mix_lost: dict[tuple[NodeClass, tuple[int, ...], Shared, int, int], tuple[float, float]] = {}
        self._served: dict[tuple[NodeClass, int, int], list[tuple[tuple[int, ...], Served]]] = {}

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        return floor((self.lost(before) - self.lost(after)) * _STEPS_PER_GPU + 1e-6)

    def lost(self, state: NodeCapacity) -> float:
        """Return the GPUs of a node that are lost to the mix; see the class."""
        if state.fragments is None:
            state.fragments = self._lost(state)
        return state.fragments

    def _lost(self, state: NodeCapacity) -> float:
        node_class = state.node_class
        cpus, memories = bisect_right(self._cpus, state.cpu_milli), bisect_right(self._memories, state.memory_mb)
        key = node_class, state.free, state.shared, cpus, memories
        cached = self._mix_lost.get(key)
        if cached is None:
            cached = self._mix_lost[key] = self._lost_to_mix(state)
        amount, lost = cached
        if not amount:
            return 0.0
        lost += _short(amount, state.cpu_milli, self._cpu_per_gpu, node_class.cpu_milli, node_class.devices)
        return lost + _short(amount, state.memory_mb, self._memory_per_gpu, node_class.memory_mb, node_class.devices)

    def _lost_to_mix(self, state: NodeCapacity) -> tuple[float, float]:
        """Return the free GPUs of a node, and how many of them are lost but for those that lack CPU or memory."""
        node_class, free, value = state.node_class, state.free, self._value
        amount = lost = 0.0
        for kind, count in zip(node_class.kinds, free, strict=True):
            amount += count
            lost -= count * value[kind]
        shared = [(kind, self._limits_mb[kind] - used_mb, self._limits_mb[kind]) for kind, used_mb, _ in state.shared]
        parts = [(kind, left_mb, left_mb / limit_mb) for kind, left_mb, limit_mb in shared if left_mb > 0]
        for kind, _, part in parts:
            amount += part
            lost -= part * value[kind]
        lost += amount
        for indices, served in self._serve(state) if amount else ():
            count = sum([free[index] for index in indices])
            lost -= count * (served.by_gpus[count] + served.shared[-1])
            for kind, left_mb, part in parts:
                if node_class.kinds.index(kind) in indices:
                    lost -= part * served.shared[bisect_right(served.shares_mb, left_mb)]
        return amount, lost

    def _serve(self, state: NodeCapacity) -> list[tuple[tuple[int, ...], Served]]:
        """Return (indices of the node class's kinds, the entries served with this CPU and memory)."""
        node_class = state.node_class
        cpus, memories = bisect_right(self._cpus, state.cpu_milli), bisect_right(self._memories, state.memory_mb)
        served = self._served.get((node_class, cpus, memories))
        if served is None:
            served = [
                (indices, _served(entries, state.cpu_milli, state.memory_mb, node_class.devices))
                for indices, entries in self._grouped(node_class)
            ]
            self._served[(node_class, cpus, memories)] = served
        return served

    def _grouped(self, node_class: NodeClass) -> list[tuple[tuple[int, ...], list[MixEntry]]]:
        """Return the entries grouped by the kinds of the node class that suit them."""
        if node_class not in self._groups:
            by_indices: dict[tuple[int, ...], list[MixEntry]] = {}
            for entry in self._mix_entries:
                indices = tuple([index for index, kind in enumerate(node_class.kinds) if kind in entry.kinds])
                if indices:
                    by_indices.setdefault(indices, []).append(entry)
            self._groups[node_class] = sorted(by_indices.items())
        return self._groups[node_class]

    def _size(self, entry: MixEntry) -> float:
        """Return the GPUs of one rank: for a shared device the part of the smallest that suits."""
        if entry.share_mb is None:
            return entry.gpus
        return entry.share_mb / max(min(self._limits_mb[kind] for kind in entry.kinds), 1)

    def _imagined(self, board: Board) -> list[MixEntry]:
        """Return one request each of half a device, one, two, four … of any kind.

        A request that the mix lacks may come next, and a mix of few requests must not decide alone.
        """
        kinds = frozenset(range(len(board.kinds)))
        sharable = frozenset(kind for kind in kinds if self._limits_mb[kind] > 1)
        entries = [MixEntry(1.0, 2**power, None, 0, 0, kinds) for power in range((len(board.shelves) - 1).bit_length())]
        if sharable:
            entries.append(MixEntry(1.0, 1, min(self._limits_mb[kind] for kind in sharable) // 2, 0, 0, sharable))
        return entries

    def _pressures(self, board: Board, entries: Sequence[MixEntry]) -> list[float]:
        supply = [0] * len(board.kinds)
        for slot in board.slots:
            for kind in slot.kind_of.values() if board.usable[slot.position] else ():
                supply[kind] += 1
        demand = [0.0] * len(board.kinds)
        for entry in entries:
            suitable = sum(supply[kind] for kind in entry.kinds)
            for kind in sorted(entry.kinds) if suitable else ():
                demand[kind] += entry.weight * self._size(entry) / suitable
        mean = sum(per_device * count for per_device, count in zip(demand, supply, strict=True)) / max(sum(supply), 1)
        return [per_device / mean if mean else 1.0 for per_device in demand]


@lru_cache(maxsize=4)
def _entries(
    request_mix: tuple[tuple[Request, float], ...], kinds: tuple[DeviceClass, ...], max_devices: int, policy: Policy
) -> tuple[MixEntry, ...]:
    """Return the entries that some kind suits. Cached, as the mix and the kinds of devices hardly change between
    cycles."""
    entries = [
        _entry(request, weight, kinds, max_devices, policy) for request, weight in sorted(request_mix, key=_by_request)
    ]
    return tuple(entry for entry in entries if entry is not None)


def _entry(
    request: Request, weight: float, kinds: tuple[DeviceClass, ...], max_devices: int, policy: Policy
) -> MixEntry | None:
    """Return the needs of one rank of a gang, or of the whole job, on one node; None if it needs no suitable GPU."""
    suitable = frozenset(number for number, kind in enumerate(kinds) if is_suitable(request, kind, policy))
    spread = request.gang and policy.gangs
    splits = [n for n in rank_counts(request, policy) if request.gpu_count // n <= max_devices or not spread]
    if not request.gpu_count or not suitable or not splits or weight <= 0:
        return None
    split = splits[0] if spread else 1
    cpu_milli, memory_mb = -(-request.cpu_milli // split), -(-request.memory_mb // split)
    return MixEntry(weight, request.gpu_count // split, share_mb(request), cpu_milli, memory_mb, suitable)


def _served(entries: Sequence[MixEntry], cpu_milli: int, memory_mb: int, devices: int) -> Served:
    by_gpus = [0.0] * (devices + 1)
    shares: dict[int, float] = {}
    for entry in entries:
        if entry.cpu_milli <= cpu_milli and entry.memory_mb <= memory_mb:
            if entry.share_mb is not None:
                shares[entry.share_mb] = shares.get(entry.share_mb, 0.0) + entry.weight
            elif entry.gpus <= devices:
                by_gpus[entry.gpus] += entry.weight
    shares_mb = sorted(shares)
    return Served(list(accumulate(by_gpus)), shares_mb, [0.0, *accumulate(shares[share] for share in shares_mb)])


def _short(amount: float, free: int, per_gpu: float, total: int, devices: int) -> float:
    """Return how many of the free GPUs the node's free CPU (or memory) cannot serve."""
    each = min(per_gpu, total / devices) if devices else 0.0
    return max(amount - free / each, 0.0) if each > 0 else 0.0


def _by_request(entry: tuple[Request, float]) -> tuple[str, float]:
    return repr(entry[0]), entry[1]
