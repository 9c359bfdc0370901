"""Says which waiting job may be promised a place: the first that is blocked, one that starves, or none."""

from dataclasses import dataclass
from math import fsum, inf
from typing import Protocol

from scheduling.engine.model import Job, Policy, Request, Snapshot
from scheduling.engine.queue.ordering import run_seconds


class PromisePolicy(Protocol):
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


@dataclass(frozen=True, slots=True)
class Backlog:
    """`seconds`: how long the cluster needs for all the work that waits or runs. `drain_seconds`: the mean time until
    a running job ends."""

    seconds: float
    drain_seconds: float

    def wait_seconds(self, job: Job) -> float:
        """Return how long the job would wait if it arrived now and all went in the order of arrival.

        A job that needs several GPUs together also waits until what runs beside the first free one has ended.
        """
        return self.seconds + (self.drain_seconds if job.request.gpu_count > 1 else 0.0)


def backlog(snapshot: Snapshot, now: float) -> Backlog:
    """Estimate the work in the cluster from what runs, as predictions may be far too long.

    A job met at a random moment has on average half of its run time behind it, and as much ahead. So what the running
    jobs still need is what they have received, and a waiting job counts with its predicted run time or limit, but at
    most with twice the mean age of the running jobs. If nothing runs there is no evidence, and no need for a promise.
    """
    held = fsum(_width(one.request) for one in snapshot.running)
    received = fsum(_width(one.request) * max(now - one.started_at, 0.0) for one in snapshot.running)
    if not held:
        return Backlog(inf, 0.0)
    # Jobs that share devices, or need none, may hold more than there are.
    capacity = max(held, float(sum(len(node.devices) for node in snapshot.nodes if node.is_open)))
    age = received / held
    hidden = dict(snapshot.behind)
    waiting = fsum(
        min(_width(job.request), capacity) * min(run_seconds(job), 2.0 * age) * (1 + hidden.get(job.id, 0))
        for job in snapshot.jobs
        if job.eligible_at <= now
    )
    return Backlog((received + waiting) / capacity, age)


class Starving:
    """Let any job pass another until that one starves; then promise a place to the oldest that does.

    A job starves once it has waited longer than a job that arrived now would wait in the order of arrival: as long as
    the cluster needs for all the work that it holds (see `Backlog`). An older job that still waits then has been
    passed. The bound grows with a backlog, so under overload the order does not become that of arrival, and it is
    short while little waits, when a promise costs little.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float) -> None:
        self._now = now
        self._backlog = backlog(snapshot, now)
        self._first = self._oldest(snapshot)

    def first(self) -> int | None:
        return self._first

    def may_reserve(self, job: Job) -> bool:
        return self._starves(job)

    def started(self, job: Job) -> None:
        pass

    def _oldest(self, snapshot: Snapshot) -> int | None:
        """Return the job that already holds the promise if it still starves, else the oldest that starves.

        Bands play no part here: a higher band goes first in the order of tenants, and takes the promise if it starves.
        A promise also lasts while nothing runs: the place is drained then, and only has to be taken.
        """
        starving = [job for job in snapshot.jobs if self._starves(job)]
        promised_id = snapshot.reserved_job_id
        if any(job.id == promised_id for job in (starving if snapshot.running else snapshot.jobs)):
            return promised_id
        return min(starving, key=_age).id if starving else None

    def _starves(self, job: Job) -> bool:
        waited = self._now - _age(job)[0]
        return waited > 0 and waited >= self._backlog.wait_seconds(job)


class NoPromise:
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


def _width(request: Request) -> int:
    """Return the GPUs of a request; a job without GPUs counts as one, as in `ordering.service_seconds`."""
    return max(request.gpu_count, 1)
