"""Fills a cluster with requests drawn from a list until their demand is its capacity, and measures the allocation."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import Node, Policy, RankPlacement, Request
from scheduling.engine.placement.placement import place, ranks_that_fit
from scheduling.engine.placement.scorers import scorer_of
from scheduling.simulator.traces.openb import gpus_of

RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Fill:
    """One filled cluster. `allocated_percent`: of its GPUs; `milliseconds`: to find the place of one request;
    `placed_by_gpus`, `refused_by_gpus`: GPUs of a request -> how many such requests;
    `curve`: (arrived, allocated) in percent of its GPUs, about one point per percent."""

    allocated_percent: float
    milliseconds: float
    placed_by_gpus: Mapping[int, int]
    refused_by_gpus: Mapping[int, int]
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def placed(self) -> int:
        return sum(self.placed_by_gpus.values())

    @property
    def refused(self) -> int:
        return sum(self.refused_by_gpus.values())


def fill(
    nodes: Sequence[Node],
    requests: Sequence[Request],
    placement: str,
    seed: int,
    progress: Callable[[float], None] = lambda _: None,
) -> Fill:
    """Draw requests with replacement and place each at once or never; none ends. Stop when the next request would
    bring the demand that has arrived above the cluster's GPUs.

    `placement`: a name of `scorers.PLACEMENTS`, or "random": any node that can hold it, for comparison. `progress` is
    called with the part of the demand that has arrived, 0 to 1.
    """
    rng = Random(seed)  # noqa: S311
    board, shapes = _empty_board(nodes, requests, placement)
    capacity = sum(len(node.devices) for node in nodes)
    arrived = allocated = seconds = 0.0
    placed, refused = Counter[int](), Counter[int]()
    curve = [(0.0, 0.0)]
    while True:
        request = rng.choice(requests)
        arrived += gpus_of(request)
        if arrived > capacity:
            break
        started = time.perf_counter()
        shape = shapes[id(request)]
        ranks = _anywhere(board, shape, rng) if placement == RANDOM else place(board, shape)
        if ranks is not None:
            board.allocate(ranks)
            allocated += gpus_of(request)
        (refused if ranks is None else placed)[request.gpu_count] += 1
        seconds += time.perf_counter() - started
        progress(arrived / capacity)
        if 100 * arrived / capacity >= curve[-1][0] + 1:
            curve.append((100 * arrived / capacity, 100 * allocated / capacity))
    curve.append((100.0, 100 * allocated / capacity))
    percent, milliseconds = 100 * allocated / capacity, 1000 * seconds / max(placed.total() + refused.total(), 1)
    return Fill(percent, milliseconds, placed, refused, tuple(curve))


def _empty_board(nodes: Sequence[Node], requests: Sequence[Request], placement: str) -> tuple[Board, dict[int, Shape]]:
    """Return the board with the scorer of the placement, and the shape of each request by identity."""
    policy = Policy(load_ceiling_shared=1.0, placement="tightest" if placement == RANDOM else placement)
    board = Board(nodes)
    board.scorer = scorer_of(tuple(Counter(requests).items()), board, policy)
    return board, {id(request): Shape(request, board, policy) for request in requests}


def _anywhere(board: Board, shape: Shape, rng: Random) -> tuple[RankPlacement, ...] | None:
    """Return a placement on a node drawn from all that can hold the request."""
    for slot in rng.sample(board.slots, len(board.slots)):
        if ranks_that_fit(slot, shape, 1):
            shape.allowed = frozenset([slot.position])
            return place(board, shape)
    return None
