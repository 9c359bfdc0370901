"""Says which waiting job may be promised a place: the first that is blocked, one that starves, or none."""

from collections.abc import Iterable
from typing import Protocol

from scheduling.engine.model import Job, Policy, Snapshot
from scheduling.engine.ordering import band


class Turn(Protocol):
    """One cycle's answer to who may hold the one reservation."""

    def first(self) -> int | None:
        """The job that goes before its order, if any, as it is its turn to be promised a place."""

    def may_reserve(self, job: Job) -> bool:
        """May this job, which has no room, be promised a place if nobody has been yet?"""

    def started(self, job: Job) -> None:
        """This job has just been placed."""


class FirstBlocked:
    """The first in order that has no room, and once it has been promised a place, it keeps its turn."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._kept = snapshot.reserved_job_id

    def first(self) -> int | None:
        return self._kept

    def may_reserve(self, job: Job) -> bool:
        return True

    def started(self, job: Job) -> None:
        pass


class Starving:
    """Any job passes another until that starves: then the oldest in the highest band is promised a place.

    A job starves when it has waited for `starving_after_seconds`. While jobs that starved hold `starving_percent` of
    the GPUs or more, no other is promised a place: a promise costs all others what it keeps free, so a backlog of old
    jobs, most of them large, must not turn the order into that of arrival.

    Bound: with B the longest bound of a run time, the n-th oldest starving job of the highest band starts at most 2nB
    after it began to starve: each before it waits at most B for the part to have room, and B for its devices.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._after, self._now = policy.starving_after_seconds, now
        gpus = sum(len(node.devices) for node in snapshot.nodes)
        self._left = gpus * policy.starving_percent / 100.0
        for one in snapshot.running:
            if one.waited_seconds >= self._after:
                self._left -= one.request.gpu_count
        self._first = self._chosen(snapshot.jobs, snapshot.reserved_job_id)

    def first(self) -> int | None:
        return self._first

    def may_reserve(self, job: Job) -> bool:
        return self._left > 0 and self._starves(job)

    def started(self, job: Job) -> None:
        if self._starves(job):
            self._left -= job.request.gpu_count

    def _chosen(self, jobs: Iterable[Job], kept_id: int | None) -> int | None:
        starving = [job for job in jobs if self._starves(job)] if self._left > 0 else []
        oldest = min(starving, key=_oldest_of_highest, default=None)
        kept = next((job for job in starving if job.id == kept_id), None)
        if kept is not None and oldest is not None and band(kept.priority) == band(oldest.priority):
            return kept.id
        return None if oldest is None else oldest.id

    def _starves(self, job: Job) -> bool:
        return self._now - max(job.queued_at, job.eligible_at) >= self._after


class Nobody:
    """No job is promised a place."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        pass

    def first(self) -> int | None:
        return None

    def may_reserve(self, job: Job) -> bool:
        return False

    def started(self, job: Job) -> None:
        pass


def _oldest_of_highest(job: Job) -> tuple[float, float, int]:
    return (-band(job.priority), max(job.queued_at, job.eligible_at), job.id)
