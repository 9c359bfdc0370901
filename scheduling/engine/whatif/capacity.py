"""How large a gang could start now, if nobody else waited: what fragmentation and closed nodes leave of free GPUs."""

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import Policy, Request, Snapshot
from scheduling.engine.placement.placement import place

# A gang of all free GPUs nearly always fits; where CPU or memory is short, so many smaller ones are tried.
_MAX_TRIES = 16


def largest_startable_gang(snapshot: Snapshot, policy: Policy) -> int:
    """GPUs, of any model, held whole; one CPU core in all. Where gangs may not span nodes it stands on one node."""
    board = Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running)
    free = sum(
        not (device.exclusive or device.shared_mb) for node in snapshot.nodes if node.is_open for device in node.devices
    )
    low, high = 0, free
    for _ in range(_MAX_TRIES):
        if low == high:
            break
        tried = high if low == 0 and high == free else (low + high + 1) // 2
        if place(board, Shape(Request(gpu_count=tried, gang=True), board, policy)) is not None:
            low = tried
        else:
            high = tried - 1
    return low
