"""Determines whether a nominated job may start in its place, once the jobs preempted for it have ended."""

from collections.abc import Callable, Iterable, Sequence

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import RankPlacement, RunningJob
from scheduling.engine.placement.placement import is_offered, place

# A job that has not stopped this long after its grace period is no longer expected to stop.
_HANGING_SECONDS = 30.0


def on_such_nodes(stopping: Iterable[RunningJob], is_there: Callable[[int], bool]) -> list[RunningJob]:
    """Return those of the jobs that hold something on such nodes."""
    return [job for job in stopping if any(is_there(rank.node_id) for rank in job.ranks)]


def will_end(stopping: RunningJob, now: float) -> bool:
    """Return whether a stopping job is still expected to stop: one whose grace period is long over hangs."""
    return stopping.ends_by is None or stopping.ends_by + _HANGING_SECONDS > now


def nominated_placement(
    board: Board, shape: Shape, promised: tuple[RankPlacement, ...] | None, stopping: Sequence[RunningJob] = ()
) -> tuple[RankPlacement, ...] | None:
    """Return where a job starts once these have stopped: in the promised place, or elsewhere if that is gone; None:
    nowhere.

    The board is left unchanged.
    """
    for victim in stopping:
        board.release(victim.ranks)
    ranks = promised if promised and _is_free(board, shape, promised) else place(board, shape)
    for victim in stopping:
        board.allocate(victim.ranks)
    return ranks


def _is_free(board: Board, shape: Shape, ranks: tuple[RankPlacement, ...]) -> bool:
    if sum(len(rank.holds) for rank in ranks) != shape.request.gpu_count or len(ranks) not in shape.splits:
        return False
    slots = {rank.node_id: board.slot_of(rank.node_id) for rank in ranks}
    twins = {
        node_id: slot.copy() for node_id, slot in slots.items() if slot and is_offered(board, shape, slot.position)
    }
    if any(twin.anti_affinity_counts.get(shape.request.apart) for twin in twins.values()):
        return False
    return all(rank.node_id in twins and _takes(twins[rank.node_id], shape, rank) for rank in ranks)


def _takes(slot: NodeSlot, shape: Shape, rank: RankPlacement) -> bool:
    """Allocate the rank as it is, and return whether it fits."""
    if slot.cpu_milli < rank.cpu_milli or slot.memory_mb < rank.memory_mb:
        return False
    for hold in rank.holds:
        kind = slot.kind_of.get(hold.device_id, -1)
        is_open = hold.device_id in slot.free.get(kind, ())
        if hold.memory_mb is not None and hold.device_id in slot.shared:
            used_mb, use = slot.shared[hold.device_id], slot.compute.get(hold.device_id, -1.0)
            is_open = shape.headroom_mb(kind, used_mb, use) >= 0
        if kind not in shape.limits_mb or not is_open:
            return False
    slot.allocate(rank)
    return True
