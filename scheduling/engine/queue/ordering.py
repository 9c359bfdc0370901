"""Sorts the waiting jobs of each tenant into buckets of alike jobs, and says which of them comes next."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from operator import attrgetter
from typing import NamedTuple

from scheduling.engine.model import Job, Key, Nomination, Policy, Request
from scheduling.engine.queue.job_cost import window_cost

# (tenant, request's number, priority).
Likeness = tuple[int, int, int]


class IdenticalJobs(NamedTuple):
    """In the order of their age, then of their ids; never empty."""

    jobs: list[Job]
    job_ids: tuple[int, ...]


class Grouped(NamedTuple):
    """`numbers`: each distinct request and its number. `later`: jobs that are not eligible yet. Shared between plans,
    so never to be changed."""

    jobs: tuple[Job, ...]
    now: float
    numbers: dict[Request, int]
    alike: dict[Likeness, IdenticalJobs]
    later: list[Job]


_age = attrgetter("queued_at")


_last = Grouped((), 0.0, {}, {}, [])


def group_jobs(jobs: Iterable[Job], now: float) -> Grouped:
    """Jobs in any order.

    In a worker most cycles find the queue of the cycle before, and its very objects: then comparing the two costs a
    hundredth of grouping anew. This holds no truth: it is the same function with and without the memory.
    """
    global _last
    jobs = tuple(jobs)
    last = _last
    if last.now <= now and last.jobs == jobs and all(job.eligible_at > now for job in last.later):
        _last = last._replace(jobs=jobs)  # equal ones may be others: these are found by their identity next time
        return _last
    _last = _grouped(jobs, now)
    return _last


def _grouped(jobs: tuple[Job, ...], now: float) -> Grouped:
    found = Grouped(jobs, now, {}, {}, [])
    # Hashing a request costs more than all else here, so requests are looked up by their identity first.
    known: dict[int, int] = {}
    by_identity: dict[Likeness, list[Job]] = {}
    by_likeness: dict[Likeness, list[Job]] = {}
    for job in sorted(jobs, key=attrgetter("id")):
        if job.eligible_at > now:
            found.later.append(job)
            continue
        key = (job.tenant_id, id(job.request), job.priority)
        alike = by_identity.get(key)
        if alike is None:
            number = known.get(key[1])
            if number is None:
                number = known[key[1]] = found.numbers.setdefault(job.request, len(found.numbers))
            alike = by_identity[key] = by_likeness.setdefault((key[0], number, key[2]), [])
        alike.append(job)
    for likeness, alike in by_likeness.items():
        alike.sort(key=_age)
        found.alike[likeness] = IdenticalJobs(alike, tuple([job.id for job in alike]))
    return found


JobKey = Callable[[Job, Policy, float], Key]

# The last point of each priority band; above them there is only the urgent band.
_BAND_ENDS = (499, 999, 1999)
_URGENT_AGING = 999


class JobGroup:
    """Jobs of one tenant, request and priority: whatever stops the first stops them all, but for those that are short
    enough to end before a promise falls due. They are only put in order once a first one has started: of most buckets
    none does."""

    __slots__ = ("_ids", "_order", "group", "head", "jobs", "next")

    def __init__(self, group: int, alike: IdenticalJobs, order: Callable[[Job], Key] | None) -> None:
        """`order`: what sorts them if not their age."""
        self.group = group
        self.jobs, self._ids = alike
        jobs = self.jobs
        self.next = 0
        self.head = jobs[0] if order is None else min(jobs, key=order)
        # What has still to be sorted by; None: nothing.
        self._order = order

    def step(self) -> bool:
        """The head is dealt with; says whether another is left."""
        if self._order is not None:
            self.jobs, self._order = sorted(self.jobs, key=self._order), None
        self.next += 1
        if self.next == len(self.jobs):
            return False
        self.head = self.jobs[self.next]
        return True

    def keep(self, jobs: list[Job]) -> bool:
        """Only these are left; says whether there are any."""
        self.jobs, self._ids, self.next = jobs, (), 0
        if jobs:
            self.head = jobs[0] if self._order is None else min(jobs, key=self._order)
        return bool(jobs)

    def left(self) -> tuple[int, ...]:
        """The ids of those that are not dealt with."""
        if self.next or not self._ids:
            return tuple([job.id for job in self.jobs[self.next :]])
        return self._ids


class TenantQueue:
    """The buckets of one tenant, the one whose head comes next on top. `is_promised`: the job of the reservation."""

    __slots__ = ("buckets", "is_promised", "number", "tenant_id")

    def __init__(self, number: int, tenant_id: int, is_promised: bool = False) -> None:
        self.number = number
        self.tenant_id = tenant_id
        self.is_promised = is_promised
        self.buckets: list[tuple[Key, JobGroup]] = []

    def start(self, key: Callable[[Job], Key], buckets: Iterable[JobGroup]) -> None:
        self.buckets = [(key(bucket.head), bucket) for bucket in buckets]
        heapify(self.buckets)

    def advance(self, key: Callable[[Job], Key]) -> None:
        """The head of the top bucket is dealt with."""
        bucket = self.buckets[0][1]
        if bucket.step():
            heapreplace(self.buckets, (key(bucket.head), bucket))
        else:
            heappop(self.buckets)

    def refuse(self, key: Callable[[Job], Key], may_pass: Callable[[Job], bool] | None) -> tuple[int, ...]:
        """Take the top bucket out, but for jobs that may still pass; returns the ids of those that stay behind."""
        bucket = self.buckets[0][1]
        if may_pass is None:
            heappop(self.buckets)
            return bucket.left()
        asked = bucket.jobs[bucket.next :]
        passing = [job for job in asked if may_pass(job)]
        refused = bucket.left() if not passing else tuple([job.id for job in asked if not may_pass(job)])
        if bucket.keep(passing):
            heapreplace(self.buckets, (key(bucket.head), bucket))
        else:
            heappop(self.buckets)
        return refused


class Queue:
    """What waits: `requests[group]` are the distinct requests, `later` the jobs that are not eligible yet, `claiming`
    those that others were stopped for: in the order in which that was decided, each a bucket of its own."""

    __slots__ = ("buckets", "claiming", "later", "promised", "requests")

    def __init__(
        self,
        jobs: Iterable[Job],
        promised_id: int | None,
        now: float,
        claims: Sequence[Nomination] = (),
        key: Callable[[Job], Key] | None = None,
    ) -> None:
        """Jobs in any order. `promised_id`: the job whose turn it is to be promised a place; it gets a lane of its own.
        `key`: what sorts alike jobs where that is not their age."""
        found = group_jobs(jobs, now)
        numbers = {claim.job_id: number for number, claim in enumerate(claims)}
        special = {*numbers, *(() if promised_id is None else (promised_id,))} - {job.id for job in found.later}
        self.requests: list[Request] = list(found.numbers)
        self.later: list[Job] = found.later[:]
        self.promised: tuple[int, JobGroup] | None = None
        self.claiming: list[JobGroup] = []
        self.buckets: dict[int, list[JobGroup]] = {}
        for (tenant_id, group, _), alike in found.alike.items():
            if special and not special.isdisjoint(alike.job_ids):
                for job in alike.jobs:
                    if job.id in special:
                        self._set_apart(JobGroup(group, _alike([job]), key), job.id in numbers)
                alike = _alike([job for job in alike.jobs if job.id not in special])
            if alike.jobs:
                self.buckets.setdefault(tenant_id, []).append(JobGroup(group, alike, key))
        self.claiming.sort(key=lambda bucket: numbers[bucket.head.id])

    def _set_apart(self, bucket: JobGroup, is_claiming: bool) -> None:
        if is_claiming:
            self.claiming.append(bucket)
        else:
            self.promised = bucket.head.tenant_id, bucket

    def put_back(self, bucket: JobGroup) -> None:
        """A claim came to nothing: its job waits like any other."""
        self.buckets.setdefault(bucket.head.tenant_id, []).append(bucket)


def _alike(jobs: list[Job]) -> IdenticalJobs:
    return IdenticalJobs(jobs, tuple([job.id for job in jobs]))


def band(priority: int) -> int:
    """0 low (to 499), 1 normal (to 999), 2 high (to 1999), 3 urgent."""
    return bisect_left(_BAND_ENDS, priority)


def aged_priority(priority: int, queued_at: float, policy: Policy, now: float) -> float:
    """Priority plus `aging_points_per_minute` x minutes waited, never beyond the end of the job's band.

    By waiting time only, so it does not depend on how often cycles run, nor on restarts. Urgent jobs gain at most
    999 points.
    """
    points = max(now - queued_at, 0.0) / 60.0 * policy.aging_points_per_minute
    level = band(priority)
    end = _BAND_ENDS[level] if level < len(_BAND_ENDS) else priority + _URGENT_AGING
    return min(priority + points, float(end))


def worth(job: Job, policy: Policy, now: float) -> float:
    """The aged priority as a factor: within a band it divides what the job costs or takes, so age is a bounded help."""
    return max(aged_priority(job.priority, job.queued_at, policy, now), 1.0)


def service_seconds(job: Job) -> float:
    """GPU-seconds that the job will probably take: its predicted run time, or else its time limit, x GPUs; inf where
    neither is known. A job without GPUs counts as one, so that long ones do not go before short ones."""
    return run_seconds(job) * max(job.request.gpu_count, 1)


def run_seconds(job: Job) -> float:
    """Return the predicted run time, or else the time limit; inf if neither is known."""
    seconds = job.max_runtime_seconds if job.predicted_seconds is None else job.predicted_seconds
    return inf if seconds is None else seconds


def by_service(job: Job, policy: Policy, now: float) -> Key:
    """The highest band first, then the least service / worth, unknown last, then the longest queued, then id."""
    return (-band(job.priority), service_seconds(job) / worth(job, policy, now), job.queued_at, job.id)


def by_cost(job: Job, policy: Policy, now: float) -> Key:
    """The highest band first, then the least cost over the policy's window / worth, the longest queued, id.

    Worth counts in units of 500, the usual priority, so that the second number is a cost.
    """
    return (
        -band(job.priority),
        window_cost(job.request, policy) * 500.0 / worth(job, policy, now),
        job.queued_at,
        job.id,
    )


def by_remaining(job: Job, policy: Policy, now: float) -> Key:
    """The least predicted run time first, whatever the GPUs and the priority; unknown last."""
    return (inf if job.predicted_seconds is None else job.predicted_seconds, job.queued_at, job.id)


def by_arrival(job: Job, policy: Policy, now: float) -> Key:
    """First come, first served, whatever the priority."""
    return (job.queued_at, job.id)


def by_aged_priority(job: Job, policy: Policy, now: float) -> Key:
    """The highest aged priority first, then the longest queued, then id."""
    return (-aged_priority(job.priority, job.queued_at, policy, now), job.queued_at, job.id)
