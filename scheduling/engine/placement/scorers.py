"""Names the ways to choose between the nodes that could hold a request: the values of `Policy.placement`."""

from collections.abc import Callable, Sequence

from scheduling.engine.board.board import Board
from scheduling.engine.board.node_classes import NodeCapacity, Scorer
from scheduling.engine.model import Policy, Request
from scheduling.engine.placement.fragmentation import Fragmentation

PLACEMENTS = ("fragmentation", "best_fit", "packing", "tightest")


def scorer_of(request_mix: Sequence[tuple[Request, float]], board: Board, policy: Policy) -> Scorer | None:
    """Return the scorer of a policy for one board and its copies; None: the tightest fit, without scores.

    `request_mix`: (request, how many) that free capacity should stay useful for. Raises ValueError for an unknown name.
    """
    if policy.placement == "fragmentation":
        return _LazyScorer(lambda: Fragmentation(request_mix, board, policy))
    if policy.placement == "best_fit":
        return BestFit()
    if policy.placement == "packing":
        return Packing()
    if policy.placement == "tightest":
        return None
    raise ValueError(f"no placement is named {policy.placement!r}; there are {', '.join(PLACEMENTS)}")


class _LazyScorer:
    """Builds a scorer only when something can be placed: a cycle that can place nothing needs none."""

    def __init__(self, make: Callable[[], Scorer]) -> None:
        self._make = make
        self._scorer: Scorer | None = None

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        if self._scorer is None:
            self._scorer = self._make()
        return self._scorer.score(before, after)


class BestFit:
    """Prefers the node with the least left of everything, each as a part of the node's total. For comparison."""

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        node_class = after.node_class
        gpus = sum(after.free) + sum(1 for _ in after.shared)
        free = gpus / max(node_class.devices, 1) + after.cpu_milli / max(node_class.cpu_milli, 1)
        return -round(100 * (free + after.memory_mb / max(node_class.memory_mb, 1)))


class Packing:
    """Prefers shared devices in use, then nodes in use, then idle nodes. For comparison."""

    def score(self, before: NodeCapacity, after: NodeCapacity) -> int:
        if before.shared and sum(after.free) == sum(before.free):
            return 2
        return 1 if sum(before.free) < before.node_class.devices else 0
