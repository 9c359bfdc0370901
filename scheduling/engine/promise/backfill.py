"""Promises the first blocked job a place and a time, and lets later jobs pass only where that does not delay it."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from scheduling.engine.board.board import Board, NodeSlot
from scheduling.engine.board.shapes import Shape
from scheduling.engine.model import Policy, Promise, RankPlacement, RunningJob
from scheduling.engine.placement.placement import place, ranks_per_node, room


class JobEnd(NamedTuple):
    """When a job gives back what its ranks hold, at the latest. In the order of their times, then of their jobs."""

    at: float
    job_id: int
    ranks: tuple[RankPlacement, ...]


class PromiseGuard:
    """The promise while a cycle goes on: `lasting` is the board for jobs that do not end before `reservation.at`.

    It differs from the board of now on the promised nodes alone: there it has what is free now and stays free when
    the promised job has started.
    """

    __slots__ = ("_later", "lasting", "reservation")

    def __init__(self, reservation: Promise, board: Board, future: Board) -> None:
        self.reservation = reservation
        self.lasting = board.copy()
        future.take(reservation.ranks)
        # The promised nodes as they will be then, the promised job in place.
        self._later = {node_id: future.slot_of(node_id) for node_id in reservation.node_ids}
        for node_id in reservation.node_ids:
            self._narrow(board, node_id)

    def take(self, board: Board, ranks: tuple[RankPlacement, ...], ends_at: float) -> None:
        """A job has just been put on the board of now."""
        self.lasting.take(rank for rank in ranks if rank.node_id not in self._later)
        for rank in ranks:
            later = self._later.get(rank.node_id)
            if later is not None and ends_at > self.reservation.at:
                later.take(rank)
        for node_id in sorted({rank.node_id for rank in ranks}):
            if node_id in self._later:
                self._narrow(board, node_id)

    def withhold(self, board: Board, ranks: tuple[RankPlacement, ...], ends_at: float) -> None:
        """A job has just been promised these, freed by preemption, on the board of now."""
        self.lasting.withhold(rank for rank in ranks if rank.node_id not in self._later)
        # Nobody is stopped on the promised nodes, so what is taken there is free now.
        self.take(board, tuple(rank for rank in ranks if rank.node_id in self._later), ends_at)

    @property
    def node_ids(self) -> frozenset[int]:
        return frozenset(self._later)

    def _narrow(self, board: Board, node_id: int) -> None:
        now, later = board.slot_of(node_id), self._later[node_id]
        if now is not None and later is not None:
            self.lasting.put(_common(now, later))


def promise(
    board: Board, shape: Shape, job_id: int, ends: Iterable[JobEnd], now: float, not_before: float
) -> tuple[Promise, Board] | None:
    """The earliest time at which a job fits if everything runs to its upper bound, and the board of that time.

    None: it does not fit even when all that runs has ended. `not_before`: its tenant's limits leave no room earlier.

    Bound: while its job keeps the reservation (the next snapshot names it), `at` never moves later. What passes it
    either ends by `at` or is disjoint from the promised devices, CPU and memory, so the same place is free at `at`
    in the next cycle too. So a job that is first in order starts after at most the longest remaining run time bound
    of what runs then, however many smaller jobs stream by. Only a bound that turns out too low (a job without time
    limit that outlives `unlimited_runtime_seconds`, an extended limit), or a lost node, moves it.
    """
    future = board.copy()
    if not any(_fits(ranks_per_node(future, shape, split), shape, split) for split in shape.splits):
        at = first_fit(future, shape, ends)
        if at is None:
            return None
    else:
        at = now
    ranks = place(future, shape)
    if ranks is None:
        return None
    node_ids = tuple(sorted({rank.node_id for rank in ranks}))
    return Promise(job_id, max(at, now, not_before), node_ids, ranks), future


def ends_of(running: Sequence[RunningJob], policy: Policy, now: float) -> list[JobEnd]:
    """Upper bounds of what runs: its time limit, or `unlimited_runtime_seconds` from its start; never in the past."""
    ends = []
    for job in running:
        bound = job.started_at + policy.unlimited_runtime_seconds if job.ends_by is None else job.ends_by
        ends.append(JobEnd(bound if bound > now else now, job.job_id, job.ranks))
    return ends


def ends_at(max_runtime_seconds: int | None, now: float) -> float:
    """The bound of a job that would start now, as those who wait behind it must see it: without a limit, never."""
    return inf if max_runtime_seconds is None else now + max_runtime_seconds


def first_fit(future: Board, shape: Shape, ends: Iterable[JobEnd]) -> float | None:
    """Give back job by job until the shape fits; only the nodes that change are looked at again."""
    by_split = {split: ranks_per_node(future, shape, split) for split in shape.splits}
    totals = {split: sum(found.values()) for split, found in by_split.items()}
    for end in sorted(ends):
        future.release(end.ranks)
        for node_id in {rank.node_id for rank in end.ranks}:
            slot = future.slot_of(node_id)
            if slot is None or slot.position not in by_split[shape.splits[0]]:
                continue
            for split, found in by_split.items():
                now = room(slot, shape, split)
                totals[split] += now - found[slot.position]
                found[slot.position] = now
                if now >= split or (shape.spread and totals[split] >= split):
                    return end.at
    return None


def _fits(found: dict[int, int], shape: Shape, split: int) -> bool:
    return max(found.values(), default=0) >= split or (shape.spread and sum(found.values()) >= split)


def _common(now: NodeSlot, later: NodeSlot) -> NodeSlot:
    """What is free both now and later on one node."""
    slot = now.copy()
    slot.cpu_milli, slot.memory_mb = min(now.cpu_milli, later.cpu_milli), min(now.memory_mb, later.memory_mb)
    shared: dict[int, int] = {}
    for device_id in sorted({*now.shared, *later.shared}):
        if _is_open(now, device_id) and _is_open(later, device_id):
            shared[device_id] = max(now.shared.get(device_id, 0), later.shared.get(device_id, 0))
    slot.shared = shared
    slot.apart = {name: max(now.apart.get(name, 0), later.apart.get(name, 0)) for name in {*now.apart, *later.apart}}
    slot.free = {
        kind: [device_id for device_id in ids if device_id in later.free.get(kind, ())]
        for kind, ids in now.free.items()
    }
    slot.free_count = sum(map(len, slot.free.values()))
    return slot


def _is_open(slot: NodeSlot, device_id: int) -> bool:
    return device_id in slot.shared or device_id in slot.free.get(slot.kind_of.get(device_id, -1), ())
