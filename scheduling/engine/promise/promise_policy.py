"""Chooses the waiting job that may be promised a place: the first that is blocked, one that starves, or none."""

from dataclasses import dataclass
from math import fsum, inf
from typing import Protocol

from scheduling.engine.model import Job, Policy, Request, Snapshot
from scheduling.engine.promise.backfill import ends_at


class PromisePolicy(Protocol):
    """Decides in one cycle which job may hold the one promise."""

    def next_job_id(self) -> int | None:
        """Return the job that goes before its order, if any, because it may be promised a place next."""

    def may_promise(self, job: Job) -> bool:
        """Return whether this job, which does not fit, may be promised a place if no job has been promised one yet."""

    def started(self, job: Job) -> None:
        """Note that this job has just been placed."""


class FirstBlocked:
    """Promises to the first job in order that does not fit; it keeps its turn once it has the promise."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._promised_id = snapshot.reserved_job_id

    def next_job_id(self) -> int | None:
        return self._promised_id

    def may_promise(self, job: Job) -> bool:
        return True

    def started(self, job: Job) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work in the cluster. `seconds`: how long the cluster needs for all jobs that wait or run. `drain_seconds`:
    the mean time until a running job ends."""

    seconds: float
    drain_seconds: float

    def wait_seconds(self, job: Job) -> float:
        """Return how long the job would wait if it arrived now and all went in the order of arrival.

        A job that needs several GPUs together also waits until the jobs beside the first free GPU have ended.
        """
        return self.seconds + (self.drain_seconds if job.request.gpu_count > 1 else 0.0)


def backlog(snapshot: Snapshot, now: float) -> Backlog:
    """Estimate the work in the cluster from the running jobs, as predictions may be far too long, and must move no
    promise.

    A job met at a random moment has on average half of its run time behind it, and as much ahead. So the running jobs
    still need as much as they have received, and a waiting job counts with their mean age, or with its limit if that is
    shorter. If nothing runs there is no evidence, and no need for a promise.
    """
    busy = fsum(_width(job.request) for job in snapshot.running)
    received = fsum(_width(job.request) * max(now - job.started_at, 0.0) for job in snapshot.running)
    if not busy:
        return Backlog(inf, 0.0)
    # Jobs that share devices, or need none, may hold more than there are.
    capacity = max(busy, float(sum(len(node.devices) for node in snapshot.nodes if node.is_open)))
    age = received / busy
    hidden_counts = dict(snapshot.behind)
    waiting = fsum(
        min(_width(job.request), capacity)
        * min(ends_at(job.max_runtime_seconds, 0.0), age)
        * (1 + hidden_counts.get(job.id, 0))
        for job in snapshot.jobs
        if job.eligible_at <= now
    )
    return Backlog((received + waiting) / capacity, age)


class Starving:
    """Lets any job pass another until that one starves; then promises a place to the oldest that does.

    A job starves once it has waited longer than a job that arrived now would wait in the order of arrival: as long as
    the cluster needs for all the work that it holds (see `Backlog`). An older job that still waits then has been
    passed. The bound grows with the backlog, so under overload the order does not become that of arrival, and it is
    short while few jobs wait, when a promise costs little.

    A job that has the promise keeps it until it starts. Otherwise other jobs, which raise the backlog when they arrive,
    would move its start.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._now = now
        self._promised_id = snapshot.reserved_job_id
        self._backlog = backlog(snapshot, now)
        self._next_job_id = self._oldest(snapshot)

    def next_job_id(self) -> int | None:
        return self._next_job_id

    def may_promise(self, job: Job) -> bool:
        return job.id == self._promised_id or self._starves(job)

    def started(self, job: Job) -> None:
        pass

    def _oldest(self, snapshot: Snapshot) -> int | None:
        """Return the job that already holds the promise, else the oldest that starves.

        Bands play no part here: a higher band goes first in the order of tenants, and takes the promise if it starves.
        """
        if any([job.id == self._promised_id for job in snapshot.jobs]):
            return self._promised_id
        starving = [job for job in snapshot.jobs if self._starves(job)]
        return min(starving, key=_age).id if starving else None

    def _starves(self, job: Job) -> bool:
        waited = self._now - _age(job)[0]
        return waited > 0 and waited >= self._backlog.wait_seconds(job)


class NoPromise:
    """Promises no job a place."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        pass

    def next_job_id(self) -> int | None:
        return None

    def may_promise(self, job: Job) -> bool:
        return False

    def started(self, job: Job) -> None:
        pass


def _age(job: Job) -> tuple[float, int]:
    return max(job.queued_at, job.eligible_at), job.id


def _width(request: Request) -> int:
    """Return the GPUs of a request; a job without GPUs counts as one, as in `ordering.service_seconds`."""
    return max(request.gpu_count, 1)
