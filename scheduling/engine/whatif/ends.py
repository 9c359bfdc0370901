"""Determines which ends of running jobs make a waiting one fit, on one board that is reused for all checks."""

from collections.abc import Collection

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import Policy, Request, Snapshot
from scheduling.engine.placement.placement import place


class Ends:
    """The cluster of a snapshot, with some of its running jobs ended, for one request."""

    def __init__(self, snapshot: Snapshot, policy: Policy, request: Request) -> None:
        self._board = Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running)
        self._shape = Shape(request, self._board, policy)
        self._ranks = {job.job_id: job.ranks for job in snapshot.running}
        self._ended: set[int] = set()

    def make_room(self, job_ids: Collection[int]) -> bool:
        """Return whether the request fits once these jobs, and no others, have ended, if no other job waited."""
        ended = set(job_ids)
        for job_id in ended - self._ended:
            self._board.release(self._ranks[job_id])
        for job_id in self._ended - ended:
            self._board.allocate(self._ranks[job_id])
        self._ended = ended
        return place(self._board, self._shape) is not None
