"""Says whether a job may start where it was promised to, once those have ended that were stopped for it."""

from collections.abc import Sequence

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import RankPlacement, RunningJob
from scheduling.engine.placement.placement import is_offered, place


def nominated_placement(
    board: Board, shape: Shape, promised: tuple[RankPlacement, ...] | None, stopping: Sequence[RunningJob] = ()
) -> tuple[RankPlacement, ...] | None:
    """Where a job starts once these have stopped: in the promised place, or elsewhere if that has gone; None: nowhere.

    The board is left as it was.
    """
    for victim in stopping:
        board.release(victim.ranks)
    ranks = promised if promised and _is_free(board, shape, promised) else place(board, shape)
    for victim in stopping:
        board.take(victim.ranks)
    return ranks


def _is_free(board: Board, shape: Shape, ranks: tuple[RankPlacement, ...]) -> bool:
    if sum(len(rank.holds) for rank in ranks) != shape.request.gpu_count or len(ranks) not in shape.splits:
        return False
    slots = {rank.node_id: board.slot_of(rank.node_id) for rank in ranks}
    twins = {
        node_id: slot.copy() for node_id, slot in slots.items() if slot and is_offered(board, shape, slot.position)
    }
    if any(twin.apart.get(shape.request.apart) for twin in twins.values()):
        return False
    return all(rank.node_id in twins and _takes(twins[rank.node_id], shape, rank) for rank in ranks)


def _takes(slot: NodeSlot, shape: Shape, rank: RankPlacement) -> bool:
    """Whether the rank fits as it is; then it has been taken."""
    if slot.cpu_milli < rank.cpu_milli or slot.memory_mb < rank.memory_mb:
        return False
    for hold in rank.holds:
        kind = slot.kind_of.get(hold.device_id, -1)
        is_open = hold.device_id in slot.free.get(kind, ())
        if hold.memory_mb is not None and hold.device_id in slot.shared:
            taken, use = slot.shared[hold.device_id], slot.compute.get(hold.device_id, -1.0)
            is_open = shape.left_beside(kind, taken, use) >= 0
        if kind not in shape.limits_mb or not is_open:
            return False
    slot.take(rank)
    return True
