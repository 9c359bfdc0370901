"""Reads a request against the kinds of devices and the nodes there are: what suits it, and how it may be split."""

import re
from collections.abc import Iterator, Sequence
from math import floor

from scheduling.engine.board import Board, Kind
from scheduling.engine.model import Policy, Request


class Shape:
    """A request seen against the kinds and nodes of one snapshot; valid for every board built from its nodes."""

    __slots__ = ("allowed", "families", "kinds", "limits_mb", "request", "share_mb", "splits", "spread")

    def __init__(self, request: Request, board: Board, policy: Policy) -> None:
        self.request = request
        self.share_mb = share_mb(request)
        self.spread = request.gang and policy.gangs
        self.splits = rank_counts(request, policy)
        suits = [is_suitable(request, kind, policy) for kind in board.kinds]
        # Kinds are sorted by memory: the least sufficient comes first, big devices are left to those who need them.
        self.kinds = tuple(number for number, fits in enumerate(suits) if fits)
        self.limits_mb = {number: _ceiling_mb(board.kinds[number], policy.load_ceiling_shared) for number in self.kinds}
        self.families = tuple(self._families(board))
        self.allowed = _selected(request, board)

    def _families(self, board: Board) -> Iterator[tuple[int, int, bool]]:
        """(least memory of a suitable device, family, has it one kind only), cheapest first."""
        if not self.request.gpu_count:
            yield from ((0, family, True) for family in range(len(board.families)))
            return
        found = []
        for family, kinds in enumerate(board.families):
            suitable = [number for number in kinds if number in self.limits_mb]
            if suitable:
                found.append((max(board.kinds[suitable[0]].memory_mb, 0), family, len(kinds) == 1))
        yield from sorted(found)

    def part(self, split: int) -> tuple[int, int, int]:
        """GPUs, CPU millicores and memory MiB of one of `split` ranks; CPU and memory are rounded up."""
        request = self.request
        return request.gpu_count // split, -(-request.cpu_milli // split), -(-request.memory_mb // split)


def share_mb(request: Request) -> int | None:
    """MiB that a job takes of each device that it shares; None: it takes devices whole.

    A job that would share but does not say how much gets the device whole: nothing else is safe.
    """
    return request.gpu_memory_mb if request.shared else None


def rank_counts(request: Request, policy: Policy) -> tuple[int, ...]:
    """Into how many ranks a request may be split, best first; empty: its ranks do not divide its GPUs evenly.

    Without gang scheduling (of the job or of the policy) all ranks stay on one node.
    """
    if request.ranks is not None:
        return (request.ranks,) if request.ranks > 0 and request.gpu_count % request.ranks == 0 else ()
    if request.gang and policy.gangs and request.gpu_count:
        return tuple(ranks for ranks in range(1, request.gpu_count + 1) if request.gpu_count % ranks == 0)
    return (1,)


def is_suitable(request: Request, kind: Kind, policy: Policy) -> bool:
    """Could a wholly free device of this kind take its part of the request? Ceilings are hard, for both modes."""
    if request.gpu_models and not any(is_model(word, kind.model) for word in request.gpu_models):
        return False
    if request.gpu_memory_mb is None:
        return True
    ceiling = policy.load_ceiling_shared if share_mb(request) is not None else policy.load_ceiling
    return kind.memory_mb >= 0 and request.gpu_memory_mb <= _ceiling_mb(kind, ceiling)


def is_model(word: str, model: str) -> bool:
    """`A100` names `NVIDIA A100-SXM4-80GB`: equal, or a whole word of it, in any case."""
    return re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])", model.lower()) is not None


def is_selected(request: Request, labels: Sequence[tuple[str, str]]) -> bool:
    return all(label in labels for label in request.node_selector)


def _ceiling_mb(kind: Kind, ceiling: float) -> int:
    return floor(kind.memory_mb * ceiling)


def _selected(request: Request, board: Board) -> frozenset[int] | None:
    if not request.node_selector:
        return None
    return frozenset(slot.position for slot in board.slots if is_selected(request, tuple(slot.node.labels.items())))
