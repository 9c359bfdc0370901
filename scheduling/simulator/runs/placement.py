"""Fills a cluster with requests drawn from a list until their demand is its capacity, and measures what got in."""

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
    """One filled cluster. `allocated_percent`: of its GPUs; `milliseconds`: for finding the place of one request;
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
    """Draws requests with replacement and places each at once or never; nobody leaves. It ends when the next one
    would bring the demand that has arrived above the cluster's GPUs.

    `placement`: a name of `scorers.PLACEMENTS`, or "random": any node with room, for comparison. `progress` is told
    the part of the demand that has arrived, 0 to 1.
    """
    rng = Random(seed)  # noqa: S311
    policy = Policy(load_ceiling_shared=1.0, placement="tightest" if placement == RANDOM else placement)
    board = Board(nodes)
    board.scorer = scorer_of(tuple(Counter(requests).items()), board, policy)
    shapes = {id(request): Shape(request, board, policy) for request in requests}
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
            placed[request.gpu_count] += 1
            allocated += gpus_of(request)
        else:
            refused[request.gpu_count] += 1
        seconds += time.perf_counter() - started
        progress(arrived / capacity)
        if 100 * arrived / capacity >= curve[-1][0] + 1:
            curve.append((100 * arrived / capacity, 100 * allocated / capacity))
    curve.append((100.0, 100 * allocated / capacity))
    percent, milliseconds = 100 * allocated / capacity, 1000 * seconds / max(placed.total() + refused.total(), 1)
    return Fill(percent, milliseconds, placed, refused, tuple(curve))


def _anywhere(board: Board, shape: Shape, rng: Random) -> tuple[RankPlacement, ...] | None:
    """On a node drawn from all that have room."""
    for slot in rng.sample(board.slots, len(board.slots)):
        if ranks_that_fit(slot, shape, 1):
            shape.allowed = frozenset([slot.position])
            return place(board, shape)
    return None
