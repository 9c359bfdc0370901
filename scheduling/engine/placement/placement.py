"""Finds where a request fits on a board now: a whole gang or nothing, where it spoils the least."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from scheduling.engine.board.board import Board
from scheduling.engine.board.node_classes import DeviceChoice, NodeCapacity, PlacementCost
from scheduling.engine.board.node_slot import NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import DeviceHold, RankPlacement
from scheduling.engine.placement.devices import device_choices, ids_of, rank_capacity, ranks_that_fit, suitable_free

__all__ = [
    "can_place",
    "is_offered",
    "offers",
    "place",
    "place_cheapest",
    "ranks_on",
    "ranks_per_node",
    "ranks_that_fit",
    "suitable_free",
]

_DOES_NOT_FIT: PlacementCost = (-1, 0, 0, 0, 0, 0)


class Offer(NamedTuple):
    """The cost of a whole request on a node. `penalty`: see `NodeIndex.penalties`; `position`: the first of `alike`
    nodes with the same cost."""

    rating: PlacementCost
    penalty: int
    position: int
    alike: int

    @property
    def cost(self) -> tuple[int, ...]:
        """Return the key by which the smallest offer is the best."""
        return _cost_of(self.rating, self.penalty, self.position)


def place(board: Board, shape: Shape) -> tuple[RankPlacement, ...] | None:
    """Return the ranks of a request on the board as it is, or None; the board is left unchanged.

    On one node: the fewest hot devices, then the fewest that a soft booking wants, then the most welcome node (the
    fewest PreferNoSchedule taints, then the most weight of its preferences), then the locality that it prefers, then
    the best score (see `Board.scorer`), then the least total memory of the devices that it opens, then the fewest
    devices left free, then the fewest devices, then node id. A gang takes the fewest ranks that fit, on the fewest
    nodes: the widest nodes first, of those the most welcome, and the best that holds all remaining ranks at the end.
    """
    for split in shape.splits:
        if shape.spread and _total_ranks_that_fit(board, shape, split) < split:
            continue
        chosen = _spread(board, shape, split)
        if chosen is not None:
            choices = [(slot, _chosen(board, slot, shape, split, ranks)) for slot, ranks in chosen]
            return tuple(_ranks(choices, shape, split))
    return None


def can_place(board: Board, shape: Shape) -> bool:
    """Return whether `place` finds ranks on the board; no node is rated for it."""
    is_any = shape.allowed is None and not shape.request.apart
    for split in shape.splits:
        capacities = shape.rank_capacities.setdefault(split, {})
        need = shape.part(split)[0] * (1 if shape.spread else split) if shape.share_mb is None else 0
        total = 0
        for state, positions in chain.from_iterable(map(_items, reversed(board.shelves[need:]))):
            capacity = capacities.get(state)
            if capacity is None:
                capacity = _rank_capacity(board.slots[positions[0]], state, shape, split)
            if capacity and (is_any or (positions := [at for at in positions if _is_open(board.slots[at], shape)])):
                total += capacity * len(positions)
                if capacity >= split or (shape.spread and total >= split):
                    return True
    return False


def place_cheapest(board: Board, shape: Shape) -> tuple[RankPlacement, ...] | None:
    """Return the ranks with the least device memory in total, on any number of nodes: for memory quotas.

    Exact per split: the k-th rank on a node never costs less than the one before, so the cheapest ranks overall are a
    legal choice.
    """
    best: tuple[int, tuple[RankPlacement, ...]] | None = None
    for split in shape.splits:
        chosen = _cheapest(board, shape, split)
        choices = [
            (slot, choice) for slot, ranks in chosen if (choice := _cheap(slot, shape, split, ranks)) is not None
        ]
        cost = sum(_cost(choice, shape) for _, choice in choices)
        if choices and (best is None or cost < best[0]):
            best = cost, tuple(_ranks(choices, shape, split))
    return best[1] if best else None


def ranks_per_node(board: Board, shape: Shape, split: int) -> dict[int, int]:
    """Return for every node that may take any of `split` ranks its position -> how many of them fit there now."""
    ranks_at: dict[int, int] = {}
    for shelf in board.shelves:
        for state, positions in shelf.items():
            ranks_at |= dict.fromkeys(positions, _rank_capacity(board.slots[positions[0]], state, shape, split))
    if shape.allowed is not None:
        ranks_at = {position: ranks for position, ranks in ranks_at.items() if position in shape.allowed}
    if shape.request.apart:
        for position in ranks_at:
            if board.slots[position].anti_affinity_counts.get(shape.request.apart):
                ranks_at[position] = 0
    return ranks_at


def ranks_on(board: Board, slot: NodeSlot, shape: Shape) -> list[int]:
    """Return for each split of the request how many of its ranks fit on any view of a node of the board, computed once
    per state."""
    if shape.request.apart and slot.anti_affinity_counts.get(shape.request.apart):
        return [0] * len(shape.splits)
    state = board.state(slot.node_class, slot.cpu_milli, slot.memory_mb, *slot.counted())
    return [_rank_capacity(slot, state, shape, split) for split in shape.splits]


def is_offered(board: Board, shape: Shape, position: int) -> bool:
    """Return whether the node may get work of this request at all."""
    return board.usable[position] and (shape.allowed is None or position in shape.allowed)


def offers(board: Board, shape: Shape, ranks: int) -> Iterator[Offer]:
    """Yield the cost of a whole request of so many ranks on one node: an offer for each state of a node that can hold
    it now, and for each penalty of the nodes in that state."""
    ratings = shape.ratings.get((ranks, ranks), {})
    for state, positions in _candidates(board, shape, shape.part(ranks)[0] * ranks):
        rating = (ratings.get(state) or _rated(board, state, shape, ranks, ranks))[0]
        if rating is _DOES_NOT_FIT:
            continue
        is_any = shape.allowed is None and not shape.request.apart
        open_ = positions if is_any else [at for at in positions if _is_open(board.slots[at], shape)]
        if shape.penalties is None:
            if open_:
                yield Offer(rating, 0, open_[0], len(open_))
            continue
        by_penalty: dict[int, list[int]] = {}
        for position in open_:
            by_penalty.setdefault(shape.penalties[position], []).append(position)
        for penalty, penalized in by_penalty.items():
            yield Offer(rating, penalty, penalized[0], len(penalized))


def _cheapest(board: Board, shape: Shape, split: int) -> list[tuple[NodeSlot, int]]:
    """Return the nodes and how many ranks each takes; empty: they do not fit."""
    usable = [slot for slot in board.slots if board.usable[slot.position] and _is_open(slot, shape)]
    if not shape.spread:
        costs = [
            (_cost(choice, shape), shape.penalties[slot.position] if shape.penalties else 0, slot.position)
            for slot in usable
            if (choice := _cheap(slot, shape, split, split))
        ]
        return [(board.slots[min(costs)[2]], split)] if costs else []
    cheapest = sorted(offer for slot in usable for offer in _offers(slot, shape, split))[:split]
    if len(cheapest) < split:
        return []
    counts: dict[int, int] = {}
    for _, position in cheapest:
        counts[position] = counts.get(position, 0) + 1
    return [(board.slots[position], ranks) for position, ranks in counts.items()]


def _offers(slot: NodeSlot, shape: Shape, split: int) -> Iterator[tuple[int, int]]:
    """Yield (MiB of device memory, node position) of each further rank on this node."""
    previous_total = 0
    for ranks in range(1, ranks_that_fit(slot, shape, split) + 1):
        choice = _cheap(slot, shape, split, ranks)
        total = previous_total if choice is None else _cost(choice, shape)
        yield total - previous_total, slot.position
        previous_total = total


def _cheap(slot: NodeSlot, shape: Shape, split: int, ranks: int) -> DeviceChoice | None:
    """Return the suitable devices of the node with the least memory, however hot; None: they do not fit."""
    return next(device_choices(slot.current_capacity(), shape, split, ranks, is_cheapest=True), None)


def _cost(choice: DeviceChoice, shape: Shape) -> int:
    """Return the MiB of device memory that the tenant is charged for."""
    if shape.share_mb is None:
        return choice.opened_mb
    return shape.share_mb * sum(pick.number for picks in choice.ranks for pick in picks)


def _total_ranks_that_fit(board: Board, shape: Shape, split: int) -> int:
    """Return how many of the ranks all nodes hold together, ignoring anti-affinity; the count stops at `split`."""
    ranks, capacities = 0, shape.rank_capacities.setdefault(split, {})
    for shelf in reversed(board.shelves):
        for state, positions in shelf.items():
            capacity = capacities.get(state)
            if capacity is None:
                capacity = _rank_capacity(board.slots[positions[0]], state, shape, split)
            if capacity:
                ranks += capacity * len(positions)
                if ranks >= split:
                    return ranks
    return ranks


def _rank_capacity(slot: NodeSlot, state: NodeCapacity, shape: Shape, split: int) -> int:
    """Return `rank_capacity` of a node in this state, computed once per state."""
    capacities = shape.rank_capacities.setdefault(split, {})
    ranks = capacities.get(state)
    if ranks is None:
        ranks = capacities[state] = rank_capacity(slot, shape, split)
    return ranks


def _spread(board: Board, shape: Shape, split: int) -> list[tuple[NodeSlot, int]] | None:
    """Return the chosen nodes and how many ranks each takes."""
    chosen: list[tuple[NodeSlot, int]] = []
    used: set[int] = set()
    remaining = split
    while remaining:
        slot = _best(board, shape, split, remaining, used)
        if slot is not None:
            chosen.append((slot, remaining))
            return chosen
        widest = _widest(board, shape, split, used) if shape.spread else None
        if widest is None:
            return None
        chosen.append(widest)
        used.add(widest[0].position)
        remaining -= widest[1]
    return chosen


def _best(board: Board, shape: Shape, split: int, ranks: int, used: set[int]) -> NodeSlot | None:
    """Return the node for all these ranks. Each state is rated once per request and cycle."""
    if shape.tiers:
        return _most_welcome(board, shape, split, ranks, used)
    need = shape.part(split)[0] * ranks
    ratings = shape.ratings.setdefault((split, ranks), {})
    best: PlacementCost | None = None
    best_position = -1
    is_any = shape.allowed is None and not used and not shape.request.apart
    for state, positions in _candidates(board, shape, need):
        rated = ratings.get(state)
        if rated is None:
            rated = ratings[state] = _rated(board, state, shape, split, ranks)
        rating = rated[0]
        if rating is _DOES_NOT_FIT or (best is not None and rating > best):
            continue
        position = positions[0] if is_any else _first_open(board, shape, positions, used)
        if position is not None and (best is None or (rating, position) < (best, best_position)):
            best, best_position = rating, position
    return None if best is None else board.slots[best_position]


def _most_welcome(board: Board, shape: Shape, split: int, ranks: int, used: set[int]) -> NodeSlot | None:
    """Return the node for all these ranks of a request that prefers some nodes to others in the same state."""
    ratings = shape.ratings.setdefault((split, ranks), {})
    best: tuple[int, ...] | None = None
    for state, positions in _candidates(board, shape, shape.part(split)[0] * ranks):
        rated = ratings.get(state)
        if rated is None:
            rated = ratings[state] = _rated(board, state, shape, split, ranks)
        rating = rated[0]
        if rating is _DOES_NOT_FIT or (best is not None and rating[0] > best[0]):
            continue
        welcome = _first_welcome(board, shape, positions, used)
        if welcome is not None:
            cost = _cost_of(rating, *welcome)
            best = cost if best is None or cost < best else best
    return None if best is None else board.slots[best[-1]]


def _cost_of(rating: PlacementCost, penalty: int, position: int) -> tuple[int, ...]:
    hot, *rest = rating
    return (hot, penalty, *rest, position)


def _candidates(board: Board, shape: Shape, need: int) -> Iterator[tuple[NodeCapacity, list[int]]]:
    shelves: Iterable[dict[NodeCapacity, list[int]]] = board.shelves[need:]
    if shape.share_mb is not None and board.sharing:
        shelves = chain([board.sharing], shelves)
    return chain.from_iterable(map(_items, shelves))


def _items(shelf: dict[NodeCapacity, list[int]]) -> Iterable[tuple[NodeCapacity, list[int]]]:
    return shelf.items()


def _rated(
    board: Board, state: NodeCapacity, shape: Shape, split: int, ranks: int
) -> tuple[PlacementCost, DeviceChoice | None]:
    """Return the cost of the ranks on a node in this state, and their devices. The smallest cost is the best."""
    gpus, cpu_milli, memory_mb = shape.part(split)
    cpu_left, memory_left = state.cpu_milli - cpu_milli * ranks, state.memory_mb - memory_mb * ranks
    if (cpu_milli and cpu_left < 0) or (memory_mb and memory_left < 0):
        return _DOES_NOT_FIT, None
    # The devices are the same whatever CPU and memory are free.
    key = gpus, ranks, state.node_class, state.free, state.shared
    choices = shape.choices.get(key)
    if choices is None:
        choices = shape.choices[key] = tuple(device_choices(state, shape, split, ranks))
    best, best_choice = _DOES_NOT_FIT, None
    for choice in choices:
        score = 0
        if board.scorer is not None:
            after = board.state(state.node_class, cpu_left, memory_left, choice.free, choice.shared)
            score = board.scorer.score(state, after)
        rating = (choice.hot, choice.misses, -score, choice.opened_mb, sum(choice.free), state.node_class.devices)
        if best_choice is None or rating < best:
            best, best_choice = rating, choice
    return best, best_choice


def _widest(board: Board, shape: Shape, split: int, used: set[int]) -> tuple[NodeSlot, int] | None:
    """Return the node that takes the most ranks of a gang, then the first.

    A node with n free devices takes at most n / GPUs per rank, so the search ends early.
    """
    gpus = shape.part(split)[0]
    best: tuple[int, int, int] | None = None
    for free in range(len(board.shelves) - 1, -1, -1):
        if best is not None and gpus and shape.share_mb is None and -best[0] > free // gpus:
            break
        best = _wider(board, board.shelves[free], shape, split, used, best)
    return None if best is None else (board.slots[best[2]], -best[0])


def _wider(
    board: Board,
    shelf: dict[NodeCapacity, list[int]],
    shape: Shape,
    split: int,
    used: set[int],
    best: tuple[int, int, int] | None,
) -> tuple[int, int, int] | None:
    """Return (-ranks, penalty, position): the smallest is the widest, of equally wide ones the most welcome."""
    for state, positions in shelf.items():
        # All nodes in one state can hold the same number; anti-affinity is checked node by node.
        ranks = _rank_capacity(board.slots[positions[0]], state, shape, split)
        if ranks and (best is None or ranks >= -best[0]):
            welcome = _first_welcome(board, shape, positions, used)
            if welcome is not None and (best is None or (-ranks, *welcome) < best):
                best = -ranks, *welcome
    return best


def _first_welcome(board: Board, shape: Shape, positions: list[int], used: set[int]) -> tuple[int, int] | None:
    """Return (penalty, position) of the most welcome open node."""
    if not shape.tiers:
        position = _first_open(board, shape, positions, used)
        return None if position is None else (0, position)
    for penalty, tier in shape.tiers:
        open_: Iterable[int] = tier.intersection(positions)
        if used or shape.request.apart:
            open_ = [at for at in open_ if at not in used and _is_open(board.slots[at], shape)]
        if open_:
            return penalty, min(open_)
    return None


def _first_open(board: Board, shape: Shape, positions: list[int], used: set[int]) -> int | None:
    if shape.allowed is None and not used and not shape.request.apart:
        return positions[0]
    return next((at for at in positions if at not in used and _is_open(board.slots[at], shape)), None)


def _is_open(slot: NodeSlot, shape: Shape) -> bool:
    if shape.allowed is not None and slot.position not in shape.allowed:
        return False
    return not (shape.request.apart and slot.anti_affinity_counts.get(shape.request.apart))


def _chosen(board: Board, slot: NodeSlot, shape: Shape, split: int, ranks: int) -> DeviceChoice:
    """Return the devices for which the node was chosen."""
    state = board.shelved_state(slot.position) or slot.current_capacity()
    cached = shape.ratings.get((split, ranks), {}).get(state)
    choice = (cached or _rated(board, state, shape, split, ranks))[1]
    if choice is None:
        raise ValueError(f"node {slot.node.id} cannot hold the ranks chosen for it")
    return choice


def _ranks(choices: list[tuple[NodeSlot, DeviceChoice]], shape: Shape, split: int) -> Iterator[RankPlacement]:
    _, cpu_milli, memory_mb = shape.part(split)
    rank = 0
    for slot, choice in choices:
        for ids in ids_of(slot, choice):
            holds = tuple([DeviceHold(device_id, shape.share_mb) for device_id in ids])
            yield RankPlacement(rank, slot.node.id, cpu_milli, memory_mb, holds, shape.request.apart)
            rank += 1
