"""Matches a request with the kinds of devices and the nodes of a snapshot: which suit it, and how it may be split."""

import re
from collections.abc import Sequence
from functools import lru_cache
from math import floor, isqrt

from scheduling.engine.affinity import is_met
from scheduling.engine.board.board import Board
from scheduling.engine.board.node_classes import DeviceChoice, DeviceClass, NodeCapacity, PlacementCost
from scheduling.engine.model import Policy, Request

# Values of Request.topology: the group in which the GPUs of a rank are together, and whether that is required.
_NEAR = {
    "nvlink": ("island", True),
    "numa": ("numa", True),
    "prefer_nvlink": ("island", False),
    "prefer_numa": ("numa", False),
}


class Shape:
    """A request matched with the kinds and nodes of one snapshot; valid for every board built from its nodes."""

    __slots__ = (
        "allowed",
        "ceiling",
        "choices",
        "is_local",
        "kinds",
        "limits_mb",
        "memory_mb",
        "near",
        "penalties",
        "rank_capacities",
        "ratings",
        "request",
        "share_mb",
        "splits",
        "spread",
        "tiers",
    )

    def __init__(self, request: Request, board: Board, policy: Policy) -> None:
        self.request = request
        self.share_mb = share_mb(request)
        self.spread = request.gang and policy.gangs
        self.splits = rank_counts(request, policy)
        self.near, self.is_local = nearness(request)
        self.ceiling = policy.load_ceiling_shared
        suits = [is_suitable(request, kind, policy) for kind in board.kinds]
        self.kinds = tuple(number for number, fits in enumerate(suits) if fits)
        self.memory_mb = {number: board.kinds[number].memory_mb for number in self.kinds}
        self.limits_mb = {number: _ceiling_mb(board.kinds[number], self.ceiling) for number in self.kinds}
        # Positions that its labels and taints allow (None: all). `penalties`: of each position, if they differ;
        # `tiers`: the same as (penalty, positions), the most welcome nodes first.
        self.allowed: frozenset[int] | None = None
        self.penalties: tuple[int, ...] | None = None
        if board.has_taints or request.node_selector or request.required:
            self.allowed = board.index.selected(request)
        if board.has_taints or request.preferred:
            self.penalties = board.index.penalties(request)
        self.tiers = _tiers(self.penalties, self.allowed) if self.penalties else ()
        # (split, ranks) -> state -> the cost of that many ranks on a node in that state, and their devices.
        self.ratings: dict[tuple[int, int], dict[NodeCapacity, tuple[PlacementCost, DeviceChoice | None]]] = {}
        # Shared by the requests that want the same devices: CPU and memory play no part.
        self.choices = board.choices.setdefault((self.share_mb, self.kinds, self.near, self.is_local), {})
        # split -> state -> how many of its ranks fit on a node in that state.
        self.rank_capacities: dict[int, dict[NodeCapacity, int]] = {}

    def part(self, split: int) -> tuple[int, int, int]:
        """Return GPUs, CPU millicores and memory MiB of one of `split` ranks; CPU and memory are rounded up."""
        request = self.request
        return request.gpu_count // split, -(-request.cpu_milli // split), -(-request.memory_mb // split)

    def headroom_mb(self, kind: int, used_mb: int, compute: float) -> int:
        """Return the MiB left under the ceiling of a shared device once this request has joined; -1: it may not.

        If the use of its processors is known (0 to 1, else -1), their load counts as well: 0.7 x memory + 0.3 x compute
        stays under the ceiling.
        """
        limit = self.limits_mb.get(kind)
        if limit is None or self.share_mb is None:
            return -1
        after = used_mb + self.share_mb
        if compute >= 0 and _load(after / self.memory_mb[kind], compute) > self.ceiling:
            return -1
        return max(limit - after, -1)


def share_mb(request: Request) -> int | None:
    """Return the MiB that a job takes of each device that it shares; None: it takes devices whole.

    A job that would share but names no amount gets the device whole: nothing else is safe.
    """
    return request.gpu_memory_mb if request.shared else None


def nearness(request: Request) -> tuple[str, bool]:
    """Return where the GPUs of a rank should be together (a key of `NodeClass.groups`), and whether it is required."""
    return _NEAR.get(request.topology, ("cell", False))


def rank_counts(request: Request, policy: Policy) -> tuple[int, ...]:
    """Return the numbers of ranks that a request may be split into, best first; empty: they do not divide its GPUs
    evenly.

    Without gang scheduling (of the job or of the policy) all ranks stay on one node.
    """
    if request.ranks is not None:
        return (request.ranks,) if request.ranks > 0 and request.gpu_count % request.ranks == 0 else ()
    if request.gang and policy.gangs and request.gpu_count:
        return _divisors(request.gpu_count)
    return (1,)


@lru_cache(1 << 12)
def _divisors(number: int) -> tuple[int, ...]:
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def is_suitable(request: Request, kind: DeviceClass, policy: Policy) -> bool:
    """Return whether a free device of this kind could hold its part of the request. Ceilings are hard in both modes."""
    if request.gpu_models and not any(is_model(word, kind.model) for word in request.gpu_models):
        return False
    if request.gpu_memory_mb is None:
        return True
    ceiling = policy.load_ceiling_shared if share_mb(request) is not None else policy.load_ceiling
    return kind.memory_mb >= 0 and request.gpu_memory_mb <= _ceiling_mb(kind, ceiling)


def is_model(word: str, model: str) -> bool:
    """Return whether the word names the model, as `A100` names `NVIDIA A100-SXM4-80GB`: equal, or a whole word of it,
    in any case."""
    return re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])", model.lower()) is not None


def needs_of(request: Request) -> tuple[tuple[str, str], ...]:
    """Return the labels that stand for needs of the job, such as a container runtime; their names have a space.

    The submitter chose the others, and may omit them.
    """
    return tuple(label for label in request.node_selector if " " in label[0])


def is_selected(request: Request, labels: Sequence[tuple[str, str]]) -> bool:
    """Return whether a node with these labels has all that the request requires of labels."""
    if not all(label in labels for label in request.node_selector):
        return False
    return not request.required or all(is_met(expression, dict(labels)) for expression in request.required)


def _load(memory: float, compute: float) -> float:
    """Return the load of a shared device, 0 to 1; rounded so that a load of exactly the ceiling is not above it."""
    return round(0.7 * memory + 0.3 * compute, 9)


def _ceiling_mb(kind: DeviceClass, ceiling: float) -> int:
    return floor(kind.memory_mb * ceiling)


def _tiers(penalties: Sequence[int], allowed: frozenset[int] | None) -> tuple[tuple[int, frozenset[int]], ...]:
    """Return the allowed positions by their penalty, the smallest first."""
    positions_by_penalty: dict[int, list[int]] = {}
    for position in range(len(penalties)) if allowed is None else allowed:
        positions_by_penalty.setdefault(penalties[position], []).append(position)
    return tuple((penalty, frozenset(positions_by_penalty[penalty])) for penalty in sorted(positions_by_penalty))
