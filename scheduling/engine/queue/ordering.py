"""Determines which group of identical jobs comes next."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf

from scheduling.engine.model import Job, Key, Nomination, Policy, Request
from scheduling.engine.queue.grouping import IdenticalJobs, Variant, group_jobs, variant_of
from scheduling.engine.queue.job_cost import window_cost

JobKey = Callable[[Job, Policy, float], Key]

# The last point of each priority band; above them there is only the urgent band.
_BAND_ENDS = (499, 999, 1999)
_URGENT_AGING = 999


class JobGroup:
    """Jobs of one tenant, request and priority: a cause that stops the first stops them all.

    Only jobs short enough to end before a promise falls due may pass. The jobs are sorted once the first has started:
    in most groups none does.
    """

    __slots__ = ("_identical", "_order", "_variants", "head", "jobs", "next", "request_number")

    def __init__(self, request_number: int, identical: IdenticalJobs, order: Callable[[Job], Key] | None) -> None:
        """`order`: sorts the jobs; None: by age."""
        self.request_number = request_number
        self._identical: IdenticalJobs | None = identical
        # The variants of the jobs; None: those of the identical jobs.
        self._variants: dict[Variant, Job] | None = None
        jobs = self.jobs = identical.jobs
        self.next = 0
        self.head = jobs[0] if order is None else min(jobs, key=order)
        # None once the jobs are sorted.
        self._order = order

    def step(self) -> bool:
        """Go on to the next job; return whether there is one."""
        if self._order is not None:
            self.jobs, self._order = sorted(self.jobs, key=self._order), None
        self.next += 1
        if self.next == len(self.jobs):
            return False
        self.head = self.jobs[self.next]
        return True

    def retain(self, jobs: list[Job], variants: dict[Variant, Job]) -> bool:
        """Retain only these jobs, which have these variants; return whether there are any."""
        self.jobs, self._identical, self._variants, self.next = jobs, None, variants, 0
        if jobs:
            self.head = jobs[0] if self._order is None else min(jobs, key=self._order)
        return bool(jobs)

    def remaining_ids(self) -> tuple[int, ...]:
        """Return the ids of the head and the jobs after it."""
        if self.next or self._identical is None:
            return tuple([job.id for job in self.jobs[self.next :]])
        return self._identical.job_ids

    def passing_variants(self, may_pass: Callable[[Job], bool]) -> dict[Variant, Job]:
        """Return the variants of which jobs may still pass, and a job of each."""
        variants = self._variants
        if variants is None:
            variants = {} if self._identical is None else self._identical.variants
        return {variant: job for variant, job in variants.items() if may_pass(job)}


class TenantQueue:
    """The job groups of one tenant, the one whose head comes next on top. `is_promised`: of the promised job alone."""

    __slots__ = ("groups", "is_promised", "number", "tenant_id")

    def __init__(self, number: int, tenant_id: int, is_promised: bool = False) -> None:
        self.number = number
        self.tenant_id = tenant_id
        self.is_promised = is_promised
        self.groups: list[tuple[Key, JobGroup]] = []

    def start(self, key: Callable[[Job], Key], groups: Iterable[JobGroup]) -> None:
        self.groups = [(key(group.head), group) for group in groups]
        heapify(self.groups)

    def advance(self, key: Callable[[Job], Key]) -> None:
        """Go on from the head of the top group."""
        group = self.groups[0][1]
        if group.step():
            heapreplace(self.groups, (key(group.head), group))
        else:
            heappop(self.groups)

    def refuse(self, key: Callable[[Job], Key], may_pass: Callable[[Job], bool] | None) -> tuple[int, ...]:
        """Remove the top group, except for jobs that may still pass; return the ids of the others. `may_pass` has one
        answer for each variant."""
        group = self.groups[0][1]
        variants = {} if may_pass is None else group.passing_variants(may_pass)
        if not variants:
            heappop(self.groups)
            return group.remaining_ids()
        passing: list[Job] = []
        refused: list[int] = []
        for job in group.jobs[group.next :]:
            if variant_of(job) in variants:
                passing.append(job)
            else:
                refused.append(job.id)
        job_ids = tuple(refused) if passing else group.remaining_ids()
        if group.retain(passing, variants):
            heapreplace(self.groups, (key(group.head), group))
        else:
            heappop(self.groups)
        return job_ids


class Queue:
    """The waiting jobs. `requests[number]`: the distinct requests; `later`: the jobs that are not eligible yet;
    `nominated`: jobs for which others were preempted, in the order of those decisions, each a group of its own."""

    __slots__ = ("groups", "later", "nominated", "promised", "requests")

    def __init__(
        self,
        jobs: Iterable[Job],
        promised_id: int | None,
        now: float,
        nominations: Sequence[Nomination] = (),
        key: Callable[[Job], Key] | None = None,
    ) -> None:
        """Jobs in any order. `promised_id`: the job that may be promised a place next; it gets a queue of its own.
        `key`: sorts identical jobs; None: by age."""
        grouped = group_jobs(jobs, now)
        numbers = {nomination.job_id: number for number, nomination in enumerate(nominations)}
        special = {*numbers, *(() if promised_id is None else (promised_id,))} - {job.id for job in grouped.later}
        self.requests: list[Request] = list(grouped.numbers)
        self.later: list[Job] = grouped.later[:]
        self.promised: tuple[int, JobGroup] | None = None
        self.nominated: list[JobGroup] = []
        self.groups: dict[int, list[JobGroup]] = {}
        for (tenant_id, number, _, _), identical in grouped.identical.items():
            if special and not special.isdisjoint(identical.job_ids):
                for job in identical.jobs:
                    if job.id in special:
                        self._set_aside(JobGroup(number, IdenticalJobs([job]), key), job.id in numbers)
                identical = IdenticalJobs([job for job in identical.jobs if job.id not in special])
            if identical.jobs:
                self.groups.setdefault(tenant_id, []).append(JobGroup(number, identical, key))
        self.nominated.sort(key=lambda group: numbers[group.head.id])

    def _set_aside(self, group: JobGroup, is_nominated: bool) -> None:
        if is_nominated:
            self.nominated.append(group)
        else:
            self.promised = group.head.tenant_id, group

    def put_back(self, group: JobGroup) -> None:
        """Put a job back whose nomination no longer holds: it waits like any other."""
        self.groups.setdefault(group.head.tenant_id, []).append(group)


def band(priority: int) -> int:
    """Return the priority band: 0 low (to 499), 1 normal (to 999), 2 high (to 1999), 3 urgent."""
    return bisect_left(_BAND_ENDS, priority)


def aged_priority(priority: int, queued_at: float, policy: Policy, now: float) -> float:
    """Return priority plus `aging_points_per_minute` x minutes waited, at most the end of the job's band.

    By waiting time only, so it does not depend on how often cycles run, nor on restarts. Urgent jobs gain at most
    999 points.
    """
    points = max(now - queued_at, 0.0) / 60.0 * policy.aging_points_per_minute
    level = band(priority)
    end = _BAND_ENDS[level] if level < len(_BAND_ENDS) else priority + _URGENT_AGING
    return min(priority + points, float(end))


def worth(job: Job, policy: Policy, now: float) -> float:
    """Return the aged priority as a divisor of a job's cost or time within a band, so age is a bounded help."""
    return max(aged_priority(job.priority, job.queued_at, policy, now), 1.0)


def service_seconds(job: Job) -> float:
    """Return the GPU-seconds that the job will probably take: its predicted run time, or else its time limit, x GPUs.

    inf if neither is known. A job without GPUs counts as one, so that long ones do not go before short ones.
    """
    return run_seconds(job) * max(job.request.gpu_count, 1)


def run_seconds(job: Job) -> float:
    """Return the predicted run time, or else the time limit; inf if neither is known."""
    seconds = job.max_runtime_seconds if job.predicted_seconds is None else job.predicted_seconds
    return inf if seconds is None else seconds


def by_service(job: Job, policy: Policy, now: float) -> Key:
    """Order by: the highest band, then the least service / worth, unknown last, then the longest queued, then id."""
    return (-band(job.priority), service_seconds(job) / worth(job, policy, now), job.queued_at, job.id)


def by_cost(job: Job, policy: Policy, now: float) -> Key:
    """Order by: the highest band, then the least cost over the policy's window / worth, the longest queued, id.

    Worth counts in units of 500, the usual priority, so that the second number is a cost.
    """
    return (
        -band(job.priority),
        _probable_cost(job, policy) * 500.0 / worth(job, policy, now),
        job.queued_at,
        job.id,
    )


def _probable_cost(job: Job, policy: Policy) -> float:
    """Return the cost over the policy's window; of a job that is predicted to end within it, the cost until then."""
    cost = window_cost(job.request, policy)
    if job.predicted_seconds is None or job.predicted_seconds >= policy.window_seconds:
        return cost
    return cost * max(job.predicted_seconds, 1.0) / policy.window_seconds


def by_remaining(job: Job, policy: Policy, now: float) -> Key:
    """Order by the least predicted run time, whatever the GPUs and the priority; unknown last."""
    return (inf if job.predicted_seconds is None else job.predicted_seconds, job.queued_at, job.id)


def by_arrival(job: Job, policy: Policy, now: float) -> Key:
    """Order by arrival, whatever the priority."""
    return (job.queued_at, job.id)


def by_aged_priority(job: Job, policy: Policy, now: float) -> Key:
    """Order by: the highest aged priority, then the longest queued, then id."""
    return (-aged_priority(job.priority, job.queued_at, policy, now), job.queued_at, job.id)
