"""Says what the end of a running job gives back on one node, and whether that is needed for a waiting one."""

from scheduling.engine.board.board import NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import RunningJob
from scheduling.engine.placement.placement import room


def helps(shape: Shape, victim: RunningJob, slot: NodeSlot) -> bool:
    """Whether it holds a device on the node that suits the request; without GPUs, or where CPU or memory is short,
    anything that it holds there may help."""
    _, cpu_milli, memory_mb = shape.part(shape.splits[-1])
    ranks = [rank for rank in victim.ranks if rank.node_id == slot.node.id]
    if not shape.request.gpu_count or slot.cpu_milli < cpu_milli or slot.memory_mb < memory_mb:
        return bool(ranks)
    return any(slot.kind_of.get(hold.device_id) in shape.limits_mb for rank in ranks for hold in rank.holds)


def fits(shape: Shape, slot: NodeSlot) -> bool:
    return any(room(slot, shape, split) >= split for split in shape.splits)


def is_needed(shape: Shape, slot: NodeSlot, victim: RunningJob) -> bool:
    """Whether the slot, where the victim is gone, has room only for that; otherwise the victim is back on it."""
    ranks = [rank for rank in victim.ranks if rank.node_id == slot.node.id]
    for rank in ranks:
        slot.take(rank)
    if fits(shape, slot):
        return False
    for rank in ranks:
        slot.release(rank)
    return True
