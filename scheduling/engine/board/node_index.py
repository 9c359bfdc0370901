"""Nodes by label and by taint: a request finds its nodes without a scan of all."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from sys import maxsize

from scheduling.engine.affinity import (
    DOES_NOT_EXIST,
    EXISTS,
    IN,
    NO_SCHEDULE,
    PREFER_NO_SCHEDULE,
    Expression,
    Taint,
    is_large_enough,
    is_tolerated,
)
from scheduling.engine.model import Node, Request

# One avoided taint outweighs all preferences: their weights are at most 100 each.
_PER_TAINT = 1_000_000
# A job that is large enough for a node's min-gpus taint prefers it by this weight, and leaves the other nodes to jobs
# that are not. The minimum weight, because the job's own preferences come first.
_MIN_GPUS_WEIGHT = 1


class NodeIndex:
    """Positions of nodes (in the board's order) by label and by taint. Requests that differ only in size share a
    result."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._all = frozenset(range(len(nodes)))
        self._by_key: dict[str, set[int]] = {}
        self._by_label: dict[tuple[str, str], set[int]] = {}
        self._by_taint: dict[Taint, set[int]] = {}
        for position, node in enumerate(nodes):
            for label in node.labels.items():
                self._by_label.setdefault(label, set()).add(position)
                self._by_key.setdefault(label[0], set()).add(position)
            for taint in node.taints:
                self._by_taint.setdefault(taint, set()).add(position)
        # The sizes that min-gpus taints require: requests that reach the same ones share a result.
        self._sizes = sorted({int(taint.value) for taint in self._by_taint if is_large_enough(taint, maxsize)})
        self._selected: dict[object, frozenset[int] | None] = {}
        self._penalties: dict[object, tuple[int, ...] | None] = {}

    def selected(self, request: Request) -> frozenset[int] | None:
        """Return the nodes with the labels that the request requires and no NoSchedule taint that it does not
        tolerate; None: all nodes."""
        key = request.node_selector, request.required, request.tolerations, self._size(request)
        if key not in self._selected:
            self._selected[key] = self._select(request)
        return self._selected[key]

    def penalties(self, request: Request) -> tuple[int, ...] | None:
        """Return for each position how unwelcome the node is, less is better; None: all nodes are alike.

        PreferNoSchedule taints count first, then the weights of the preferences that the node meets. A min-gpus taint
        that the request is large enough for counts as a preference."""
        key = request.preferred, request.tolerations, self._size(request)
        if key not in self._penalties:
            self._penalties[key] = self._penalize(request)
        return self._penalties[key]

    def _size(self, request: Request) -> int:
        """Return how many of the sizes that min-gpus taints require the request reaches."""
        return bisect_right(self._sizes, request.gpu_count)

    def _select(self, request: Request) -> frozenset[int] | None:
        positions_left = self._all
        for label in request.node_selector:
            positions_left &= self._by_label.get(label, frozenset())
        for expression in request.required:
            positions_left &= self._meeting(expression)
        for taint, positions in self._by_taint.items():
            if taint.effect == NO_SCHEDULE and not is_tolerated(taint, request.tolerations, request.gpu_count):
                positions_left -= positions
        return None if len(positions_left) == len(self._all) else positions_left

    def _penalize(self, request: Request) -> tuple[int, ...] | None:
        penalties = [0] * len(self._all)
        for taint, positions in self._by_taint.items():
            if taint.effect == PREFER_NO_SCHEDULE and not is_tolerated(taint, request.tolerations, request.gpu_count):
                _add(penalties, positions, _PER_TAINT)
            elif is_large_enough(taint, request.gpu_count):
                _add(penalties, positions, -_MIN_GPUS_WEIGHT)
        for preference in request.preferred:
            _add(penalties, self._meeting(preference.expression), -preference.weight)
        return tuple(penalties) if len(set(penalties)) > 1 else None

    def _meeting(self, expression: Expression) -> frozenset[int]:
        """Return the positions that meet the expression."""
        if expression.operator in (EXISTS, DOES_NOT_EXIST):
            met = frozenset(self._by_key.get(expression.key, ()))
        else:
            labels = [(expression.key, value) for value in expression.values]
            met = frozenset[int]().union(*[self._by_label.get(label, ()) for label in labels])
        return met if expression.operator in (IN, EXISTS) else self._all - met


def taints_and_weight(penalty: int) -> tuple[int, int]:
    """Return how many PreferNoSchedule taints a penalty counts, and the weight of the preferences that are met."""
    taints = -(-penalty // _PER_TAINT)
    return taints, taints * _PER_TAINT - penalty


def _add(penalties: list[int], positions: Iterable[int], amount: int) -> None:
    for position in positions:
        penalties[position] += amount
