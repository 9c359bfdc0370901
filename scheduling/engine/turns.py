"""Says which waiting job may be promised a place: the first that is blocked, one that starves, or none."""

from collections.abc import Iterable
from typing import Protocol

from scheduling.engine.model import Job, Policy, Snapshot


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
    """Any job passes another until that starves: then the oldest is promised a place.

    A job starves when it has waited for `starving_after_seconds`. While jobs that starved hold `starving_percent` of
    the GPUs or more, no other is promised a place: a promise costs all others what it keeps free, so a backlog of old
    jobs, most of them large, must not turn the order into that of arrival.

    Bound: with B the longest bound of a run time, the n-th oldest starving job of the highest band starts at most 2nB
    after it began to starve: each before it waits at most B for the part to have room, and B for its devices.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._after, self._now = policy.starving_after_seconds, now
        gpus = sum(len(node.devices) for node in snapshot.nodes)
        # Without GPUs there is no part of them to keep to: jobs wait for CPU and memory, and starve one at a time.
        self._left = gpus * policy.starving_percent / 100.0 if gpus else 1.0
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
        """Whoever it is: higher bands go before it in the order of tenants, and take the promise where they starve."""
        starving = [job for job in jobs if self._starves(job)] if self._left > 0 else []
        if any(job.id == kept_id for job in starving):
            return kept_id
        return min(starving, key=_age).id if starving else None

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


def _age(job: Job) -> tuple[float, int]:
    return max(job.queued_at, job.eligible_at), job.id
