"""Scores placements by how much of what stays free they spoil for the mix of requests that the cluster serves."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import floor
from typing import NamedTuple

from scheduling.engine.board.board import Board
from scheduling.engine.board.node_classes import DeviceClass, NodeCapacity, NodeClass
from scheduling.engine.board.shapes import is_suitable, rank_counts, share_mb
from scheduling.engine.model import Policy, Request

Mix = Iterable[tuple[Request, float]]

# Scores are whole 25ths of a GPU. Coarse on purpose: what differs by less is a tie, and ties go to the first node, so
# that nodes fill up one after the other. (Measured on the openb traces: 10ths to 100ths do alike; exact scores lose
# up to 0.7 percent of the GPUs.)
_STEPS_PER_GPU = 25


class MixEntry(NamedTuple):
    """A request of the mix: its part of all requests, and what one of its ranks needs on one node.

    `share_mb` None: `gpus` whole devices of `kinds`; else a part of one."""

    weight: float
    gpus: int
    share_mb: int | None
    cpu_milli: int
    memory_mb: int
    kinds: frozenset[int]


class Served(NamedTuple):
    """The wants that a node's CPU and memory suffice for, by what they need of its devices. `whole[n]`: the weight of
    those content with n free devices; `shared[i]`: of those content with less than `shares_mb[i]`, ascending."""

    whole: list[float]
    shares_mb: list[int]
    shared: list[float]


class Fragmentation:
    """A `Scorer`: how much less of the free GPUs would be lost to the mix after a placement than before it.

    The fragmentation-gradient idea of FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), with two terms
    more. All are in GPUs, so they simply add up:

    lost(node) = sum over the mix of weight x the free GPUs of the node that this request cannot use there
               + the GPUs that its free CPU, or its free memory, is short of serving
               - the sum over its free GPUs of (pressure of their kind - 1)

    Short of serving: a GPU of the mix comes with so much CPU (the mean of the mix, but no more than the node has per
    GPU), so free CPU below that many strands GPUs. Pressure: if each request is spread evenly over the devices that
    suit it, the demand per device of a kind over the mean of all kinds; devices that few can do without are spent
    last.
    """

    def __init__(self, mix: Mix, board: Board, policy: Policy) -> None:
        self._limits_mb = [floor(max(kind.memory_mb, 0) * policy.load_ceiling_shared) for kind in board.kinds]
        known = _wants(tuple(mix), board.kinds, len(board.shelves) - 1, policy)
        gpus = sum(want.weight * self._size(want) for want in known) or 1.0
        self._cpu_per_gpu = sum(want.weight * want.cpu_milli for want in known) / gpus
        self._memory_per_gpu = sum(want.weight * want.memory_mb for want in known) / gpus
        self._value = [pressure - 1.0 for pressure in self._pressures(board, known)]
        wants = [*known, *self._imagined(board)]
        total = sum(want.weight for want in wants)
        self._wants = [want._replace(weight=want.weight / total) for want in wants]
        self._cpus = sorted({want.cpu_milli for want in self._wants})
        self._memories = sorted({want.memory_mb for want in self._wants})
        self._groups: dict[NodeClass, list[tuple[tuple[int, ...], list[MixEntry]]]] = {}
        self._served: dict[tuple[NodeClass, int, int], list[tuple[tuple[int, ...], Served]]] = {}

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        return floor((self.lost(before) - self.lost(after)) * _STEPS_PER_GPU + 1e-6)

    def lost(self, state: NodeCapacity) -> float:
        """GPUs; see above."""
        if state.fragments is None:
            state.fragments = self._lost(state)
        return state.fragments

    def _lost(self, state: NodeCapacity) -> float:
        mould, free, value = state.mould, state.free, self._value
        amount = lost = 0.0
        for kind, count in zip(mould.kinds, free, strict=True):
            amount += count
            lost -= count * value[kind]
        left = [(kind, self._limits_mb[kind] - taken, self._limits_mb[kind]) for kind, taken, _ in state.shared]
        parts = [(kind, left_mb, left_mb / limit_mb) for kind, left_mb, limit_mb in left if left_mb > 0]
        for kind, _, part in parts:
            amount += part
            lost -= part * value[kind]
        if not amount:
            return 0.0
        lost += amount
        for indices, served in self._serve(state):
            count = sum([free[index] for index in indices])
            lost -= count * (served.whole[count] + served.shared[-1])
            for kind, left_mb, part in parts:
                if mould.kinds.index(kind) in indices:
                    lost -= part * served.shared[bisect_right(served.shares_mb, left_mb)]
        lost += _short(amount, state.cpu_milli, self._cpu_per_gpu, mould.cpu_milli, mould.devices)
        return lost + _short(amount, state.memory_mb, self._memory_per_gpu, mould.memory_mb, mould.devices)

    def _serve(self, state: NodeCapacity) -> list[tuple[tuple[int, ...], Served]]:
        """(which kinds of the mould, what of the mix they can serve beside this CPU and memory)."""
        mould = state.mould
        cpus, memories = bisect_right(self._cpus, state.cpu_milli), bisect_right(self._memories, state.memory_mb)
        found = self._served.get((mould, cpus, memories))
        if found is None:
            found = [
                (indices, _served(wants, state.cpu_milli, state.memory_mb, mould.devices))
                for indices, wants in self._grouped(mould)
            ]
            self._served[(mould, cpus, memories)] = found
        return found

    def _grouped(self, mould: NodeClass) -> list[tuple[tuple[int, ...], list[MixEntry]]]:
        """The wants by which of a node's kinds suit them."""
        if mould not in self._groups:
            found: dict[tuple[int, ...], list[MixEntry]] = {}
            for want in self._wants:
                indices = tuple([index for index, kind in enumerate(mould.kinds) if kind in want.kinds])
                if indices:
                    found.setdefault(indices, []).append(want)
            self._groups[mould] = sorted(found.items())
        return self._groups[mould]

    def _size(self, want: MixEntry) -> float:
        """GPUs that one rank takes: of a shared device its part of the smallest that suits."""
        if want.share_mb is None:
            return want.gpus
        return want.share_mb / max(min(self._limits_mb[kind] for kind in want.kinds), 1)

    def _imagined(self, board: Board) -> list[MixEntry]:
        """One request each of half a device, one, two, four … of any kind: what nobody wants now may be wanted next,
        and a mix of few requests must not decide alone."""
        kinds = frozenset(range(len(board.kinds)))
        sharable = frozenset(kind for kind in kinds if self._limits_mb[kind] > 1)
        wants = [MixEntry(1.0, 2**power, None, 0, 0, kinds) for power in range((len(board.shelves) - 1).bit_length())]
        if sharable:
            wants.append(MixEntry(1.0, 1, min(self._limits_mb[kind] for kind in sharable) // 2, 0, 0, sharable))
        return wants

    def _pressures(self, board: Board, wants: Sequence[MixEntry]) -> list[float]:
        supply = [0] * len(board.kinds)
        for slot in board.slots:
            for kind in slot.kind_of.values() if board.usable[slot.position] else ():
                supply[kind] += 1
        demand = [0.0] * len(board.kinds)
        for want in wants:
            suitable = sum(supply[kind] for kind in want.kinds)
            for kind in sorted(want.kinds) if suitable else ():
                demand[kind] += want.weight * self._size(want) / suitable
        mean = sum(one * count for one, count in zip(demand, supply, strict=True)) / max(sum(supply), 1)
        return [one / mean if mean else 1.0 for one in demand]


@lru_cache(maxsize=4)
def _wants(
    mix: tuple[tuple[Request, float], ...], kinds: tuple[DeviceClass, ...], most_devices: int, policy: Policy
) -> tuple[MixEntry, ...]:
    """Those that some kind suits. Remembered, as the mix and the kinds of devices hardly change between cycles."""
    found = [_want(request, weight, kinds, most_devices, policy) for request, weight in sorted(mix, key=_by_request)]
    return tuple(want for want in found if want is not None)


def _want(
    request: Request, weight: float, kinds: tuple[DeviceClass, ...], most_devices: int, policy: Policy
) -> MixEntry | None:
    """What one rank of a gang, or the whole job, needs of one node; None without GPUs, or if no device suits."""
    suitable = frozenset(number for number, kind in enumerate(kinds) if is_suitable(request, kind, policy))
    spread = request.gang and policy.gangs
    splits = [n for n in rank_counts(request, policy) if request.gpu_count // n <= most_devices or not spread]
    if not request.gpu_count or not suitable or not splits or weight <= 0:
        return None
    split = splits[0] if spread else 1
    cpu_milli, memory_mb = -(-request.cpu_milli // split), -(-request.memory_mb // split)
    return MixEntry(weight, request.gpu_count // split, share_mb(request), cpu_milli, memory_mb, suitable)


def _served(wants: Sequence[MixEntry], cpu_milli: int, memory_mb: int, devices: int) -> Served:
    whole = [0.0] * (devices + 1)
    shares: dict[int, float] = {}
    for want in wants:
        if want.cpu_milli <= cpu_milli and want.memory_mb <= memory_mb:
            if want.share_mb is not None:
                shares[want.share_mb] = shares.get(want.share_mb, 0.0) + want.weight
            elif want.gpus <= devices:
                whole[want.gpus] += want.weight
    shares_mb = sorted(shares)
    return Served(list(accumulate(whole)), shares_mb, [0.0, *accumulate(shares[share] for share in shares_mb)])


def _short(amount: float, free: int, per_gpu: float, total: int, devices: int) -> float:
    """How many of the free GPUs the node's free CPU (or memory) is short of serving."""
    each = min(per_gpu, total / devices) if devices else 0.0
    return max(amount - free / each, 0.0) if each > 0 else 0.0


def _by_request(entry: tuple[Request, float]) -> tuple[str, float]:
    return repr(entry[0]), entry[1]
