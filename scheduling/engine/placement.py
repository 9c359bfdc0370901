"""Finds where a request fits on a board right now: a whole gang or nothing, tightest fit first."""

from collections.abc import Iterator

from scheduling.engine.board import Board, Slot
from scheduling.engine.model import DeviceHold, RankPlacement
from scheduling.engine.shapes import Shape


def place(board: Board, shape: Shape) -> tuple[RankPlacement, ...] | None:
    """The ranks of a request on the board as it is, or None; the board is left as it was.

    On one node: least total device memory, then fewest devices left free, then node id. A gang takes the fewest ranks
    that fit, on the fewest nodes: the widest nodes first, and the tightest that holds all that is left at the end.
    """
    for split in shape.splits:
        chosen = _spread(board, shape, split)
        if chosen is not None:
            return tuple(_ranks(chosen, shape, split))
    return None


def place_cheapest(board: Board, shape: Shape) -> tuple[RankPlacement, ...] | None:
    """A gang on the ranks with the least device memory in total, however many nodes that takes: for memory quotas.

    Exact per split: the k-th rank on a node never costs less than the one before, so the cheapest ranks overall are
    a legal choice.
    """
    best: tuple[int, tuple[RankPlacement, ...]] | None = None
    for split in shape.splits:
        offers = sorted(offer for slot in _usable(board, shape) for offer in _offers(board, slot, shape, split))[:split]
        if len(offers) < split or (best is not None and sum(cost for cost, _ in offers) >= best[0]):
            continue
        counts: dict[int, int] = {}
        for _, position in offers:
            counts[position] = counts.get(position, 0) + 1
        chosen = [(board.slots[position], ranks) for position, ranks in counts.items()]
        best = sum(cost for cost, _ in offers), tuple(_ranks(chosen, shape, split))
    return best[1] if best else None


def room(slot: Slot, shape: Shape, split: int) -> int:
    """How many of `split` ranks fit on the node now; devices are not shared between ranks of one job."""
    gpus, cpu_milli, memory_mb = shape.part(split)
    ranks = split
    if gpus:
        ranks = min(ranks, suitable_free(slot, shape) // gpus)
    if cpu_milli > 0:
        ranks = min(ranks, slot.cpu_milli // cpu_milli)
    if memory_mb > 0:
        ranks = min(ranks, slot.memory_mb // memory_mb)
    return max(ranks, 0)


def suitable_free(slot: Slot, shape: Shape) -> int:
    """How many devices of the node could take the request now, CPU and memory aside."""
    count = 0
    for kind, ids in slot.free.items():
        if kind in shape.limits_mb:
            count += len(ids)
    if shape.share_mb is not None and slot.shared:
        count += sum(1 for _ in _open_shares(slot, shape))
    return count


def _spread(board: Board, shape: Shape, split: int) -> list[tuple[Slot, int]] | None:
    """Which nodes take how many ranks each."""
    chosen: list[tuple[Slot, int]] = []
    used: set[int] = set()
    left = split
    while left:
        slot = _tightest(board, shape, split, left, used)
        if slot is not None:
            chosen.append((slot, left))
            return chosen
        widest = _widest(board, shape, split, used) if shape.spread else None
        if widest is None:
            return None
        chosen.append(widest)
        used.add(widest[0].position)
        left -= widest[1]
    return chosen


def _tightest(board: Board, shape: Shape, split: int, ranks: int, used: set[int]) -> Slot | None:
    """The node that fits these ranks with the least device memory, then the fewest devices left free, then by id."""
    gpus, cpu_milli, memory_mb = shape.part(split)
    need, cpu_milli, memory_mb = gpus * ranks, cpu_milli * ranks, memory_mb * ranks
    if not need:
        return _emptiest_of_devices(board, shape, cpu_milli, memory_mb, used)
    best: tuple[int, int, int] | None = None
    if shape.share_mb is not None and board.sharing:
        best = _tightest_sharing(board, shape, need, cpu_milli, memory_mb, used)
    for cheapest, family, is_uniform in shape.families:
        if best is not None and best[0] < cheapest * need:
            break
        shelves = board.shelves[family]
        for free in range(need, len(shelves)):
            if best is not None and is_uniform and best < (cheapest * need, free):
                break
            for position in shelves[free]:
                slot = board.slots[position]
                if slot.cpu_milli < cpu_milli or slot.memory_mb < memory_mb or not _is_open(slot, shape, used):
                    continue
                cost = cheapest * need if is_uniform else _cost(board, slot, shape, need)
                if cost is not None and (best is None or (cost, free, position) < best):
                    best = (cost, free, position)
                if is_uniform:
                    break
    return None if best is None else board.slots[best[2]]


def _tightest_sharing(
    board: Board, shape: Shape, need: int, cpu_milli: int, memory_mb: int, used: set[int]
) -> tuple[int, int, int] | None:
    """Among nodes that share devices already: first the ones where no whole device need be broken up."""
    best: tuple[int, int, int] | None = None
    for position in board.sharing:
        slot = board.slots[position]
        if slot.cpu_milli < cpu_milli or slot.memory_mb < memory_mb or not _is_open(slot, shape, used):
            continue
        shares = sum(1 for _ in _open_shares(slot, shape))
        if shares >= need:
            return (-1, 0, position)
        if suitable_free(slot, shape) >= need and (best is None or (0, need - shares, position) < best):
            best = (0, need - shares, position)
    return best


def _emptiest_of_devices(board: Board, shape: Shape, cpu_milli: int, memory_mb: int, used: set[int]) -> Slot | None:
    """For ranks without GPUs: nodes that have none, then those with the fewest free; first fit by id packs them."""
    for free in range(max(map(len, board.shelves), default=0)):
        for _, family, _ in shape.families:
            shelves = board.shelves[family]
            for position in shelves[free] if free < len(shelves) else ():
                slot = board.slots[position]
                if slot.cpu_milli >= cpu_milli and slot.memory_mb >= memory_mb and _is_open(slot, shape, used):
                    return slot
    return None


def _widest(board: Board, shape: Shape, split: int, used: set[int]) -> tuple[Slot, int] | None:
    """The node that takes the most ranks of a gang. No node with n devices free takes more than n / GPUs per rank."""
    gpus = shape.part(split)[0]
    best: tuple[Slot, int] | None = None
    if not gpus or shape.share_mb is not None:
        for slot in _usable(board, shape):
            best = _wider(best, slot, shape, split, used)
        return best
    for free in range(max(map(len, board.shelves), default=0) - 1, gpus - 1, -1):
        for _, family, _ in shape.families:
            for position in board.shelves[family][free] if free < len(board.shelves[family]) else ():
                if best is not None and best[1] >= free // gpus:
                    return best
                best = _wider(best, board.slots[position], shape, split, used)
    return best


def _wider(
    best: tuple[Slot, int] | None, slot: Slot, shape: Shape, split: int, used: set[int]
) -> tuple[Slot, int] | None:
    if not _is_open(slot, shape, used):
        return best
    ranks = room(slot, shape, split)
    return (slot, ranks) if ranks > (0 if best is None else best[1]) else best


def _is_open(slot: Slot, shape: Shape, used: set[int]) -> bool:
    return (shape.allowed is None or slot.position in shape.allowed) and slot.position not in used


def _usable(board: Board, shape: Shape) -> Iterator[Slot]:
    return (slot for slot in board.slots if board.usable[slot.position] and _is_open(slot, shape, set()))


def _offers(board: Board, slot: Slot, shape: Shape, split: int) -> Iterator[tuple[int, int]]:
    """(MiB of device memory, node position) of each further rank on this node."""
    gpus = shape.part(split)[0]
    before = 0
    for ranks in range(1, room(slot, shape, split) + 1):
        total = _cost(board, slot, shape, gpus * ranks) or 0
        yield total - before, slot.position
        before = total


def _cost(board: Board, slot: Slot, shape: Shape, need: int) -> int | None:
    """MiB of the cheapest `need` suitable free devices of a node; None: it has too few."""
    cost = 0
    for kind in shape.kinds:
        taken = min(need, len(slot.free.get(kind, ())))
        cost += taken * max(board.kinds[kind].memory_mb, 0)
        need -= taken
    return None if need else cost


def _open_shares(slot: Slot, shape: Shape) -> Iterator[tuple[int, int]]:
    """(MiB left under the ceiling after this request, device id) of the shared devices that have room for it."""
    for device_id, taken in slot.shared.items():
        limit = shape.limits_mb.get(slot.kind_of[device_id])
        left = -1 if limit is None else limit - taken - (shape.share_mb or 0)
        if left >= 0:
            yield left, device_id


def _ranks(chosen: list[tuple[Slot, int]], shape: Shape, split: int) -> Iterator[RankPlacement]:
    gpus, cpu_milli, memory_mb = shape.part(split)
    rank = 0
    for slot, count in chosen:
        holds = _holds(slot, shape, gpus * count)
        for first in range(count):
            own = holds[first * gpus : (first + 1) * gpus]
            yield RankPlacement(rank, slot.node.id, cpu_milli, memory_mb, own)
            rank += 1


def _holds(slot: Slot, shape: Shape, count: int) -> tuple[DeviceHold, ...]:
    """The fullest shared devices first, then free ones of the kind with the least memory, then by id."""
    ids: list[int] = []
    if shape.share_mb is not None:
        ids.extend(device_id for _, device_id in sorted(_open_shares(slot, shape))[:count])
    for kind in shape.kinds:
        if len(ids) < count:
            ids.extend(slot.free.get(kind, ())[: count - len(ids)])
    return tuple([DeviceHold(device_id, shape.share_mb) for device_id in ids])
