"""Names the ways to choose between the nodes that have room: what `Policy.placement` may be."""

from collections.abc import Callable, Sequence

from scheduling.engine.board.board import Board
from scheduling.engine.board.node_classes import NodeCapacity, Scorer
from scheduling.engine.model import Policy, Request
from scheduling.engine.placement.fragmentation import Fragmentation

PLACEMENTS = ("fragmentation", "best_fit", "packing", "tightest")


def scorer_of(mix: Sequence[tuple[Request, float]], board: Board, policy: Policy) -> Scorer | None:
    """The scorer of a policy for one board and its copies; None: the tightest fit, without scores.

    `mix`: (request, how many) that free room should stay useful for. Raises ValueError for an unknown name.
    """
    if policy.placement == "fragmentation":
        return _Late(lambda: Fragmentation(mix, board, policy))
    if policy.placement == "best_fit":
        return BestFit()
    if policy.placement == "packing":
        return Packing()
    if policy.placement == "tightest":
        return None
    raise ValueError(f"no placement is named {policy.placement!r}; there are {', '.join(PLACEMENTS)}")


class _Late:
    """A scorer that is only made when something can be placed: in a cycle where nothing can, nobody asks it."""

    def __init__(self, make: Callable[[], Scorer]) -> None:
        self._make = make
        self._made: Scorer | None = None

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        if self._made is None:
            self._made = self._make()
        return self._made.score(before, after)


class BestFit:
    """A reference: the node with the least left of everything, each in parts of what the node has."""

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        mould = after.mould
        gpus = sum(after.free) + sum(1 for _ in after.shared)
        left = gpus / max(mould.devices, 1) + after.cpu_milli / max(mould.cpu_milli, 1)
        return -round(100 * (left + after.memory_mb / max(mould.memory_mb, 1)))


class Packing:
    """A reference: shared devices in use first, then nodes in use, then idle nodes."""

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        if before.shared and sum(after.free) == sum(before.free):
            return 2
        return 1 if sum(before.free) < before.mould.devices else 0
