"""Tells which ends of running jobs give a waiting one room, on one board that follows from question to question."""

from collections.abc import Collection

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import Policy, Request, Snapshot
from scheduling.engine.placement.placement import place


class Ends:
    """The cluster of a snapshot, of whose running jobs some have ended, for one request."""

    def __init__(self, snapshot: Snapshot, policy: Policy, request: Request) -> None:
        self._board = Board(snapshot.nodes, thermal=policy.thermal, running=snapshot.running)
        self._shape = Shape(request, self._board, policy)
        self._ranks = {one.job_id: one.ranks for one in snapshot.running}
        self._ended: set[int] = set()

    def give_room(self, job_ids: Collection[int]) -> bool:
        """Whether the request has room once these jobs, and no others, have ended, if nobody else waited."""
        ended = set(job_ids)
        for job_id in ended - self._ended:
            self._board.release(self._ranks[job_id])
        for job_id in self._ended - ended:
            self._board.allocate(self._ranks[job_id])
        self._ended = ended
        return place(self._board, self._shape) is not None
