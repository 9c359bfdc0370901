"""The largest gang that could start now if no other job waited: a measure of fragmentation and closed nodes."""

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.bookings.bookings import unbooked
from scheduling.engine.model import Policy, Request, Snapshot
from scheduling.engine.placement.placement import place

# A gang of all free GPUs nearly always fits; if CPU or memory is short, at most this many smaller ones are tried.
_MAX_TRIES = 16


def largest_startable_gang(snapshot: Snapshot, policy: Policy, now: float) -> int:
    """Return its GPUs, of any model, held whole; one CPU core in all. Without gang scheduling it stays on one node."""
    board = unbooked(Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running), snapshot, now)
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
