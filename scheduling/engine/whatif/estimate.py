"""Estimates when waiting jobs will start: the same plan(), run forward over the ends of the running jobs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import NamedTuple

from scheduling.engine.forward import ended, started, stopping
from scheduling.engine.model import Job, Plan, Policy, RunningJob, Snapshot
from scheduling.engine.planner import plan

MAX_PLANS = 200
# Nodes and waiting jobs, times plans, that one forecast may cost: with 10,000 jobs it plans 10 moments, not 200.
MAX_WORK = 100_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a job starts: `p50_at` if jobs run as predicted, or else use their limits as recent jobs did, `p90_at` if
    all use them up; None: unknown. `after`: the end of the forecast, so it starts later. `jobs_ending`,
    `jobs_starting`: how many running jobs end, and waiting ones start, before `p90_at`. `unlimited`: running jobs
    without a time limit."""

    p50_at: float | None
    p90_at: float | None
    after: float | None = None
    jobs_ending: int = 0
    jobs_starting: int = 0
    unlimited: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The starts of jobs. `starts`: job -> when. `seen_until`: the end of the forecast, inf: the last end. `ending`,
    `starting`: job -> how many others had ended and started before it did."""

    starts: Mapping[int, float]
    seen_until: float
    ending: Mapping[int, int]
    starting: Mapping[int, int]


def estimates(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    job_ids: Collection[int],
    *,
    typical: float = 0.5,
    work: int = MAX_WORK,
) -> dict[int, Estimate]:
    """Return an estimate for each of these waiting jobs. `typical`: the part of its time limit that the median job
    uses, 0 to 1. `work`: how much each of two forecasts may cost."""
    return Forecasts(snapshot, policy, now, plan(snapshot, policy, now)).estimates(job_ids, typical=typical, work=work)


def forecast(
    snapshot: Snapshot, policy: Policy, now: float, job_ids: Collection[int], *, part: float, work: int = MAX_WORK
) -> Forecast:
    """Return when these jobs start if each running job uses `part` of the rest of its time limit, and each new one
    `part` of its limit; those without a limit never end. With a part below 1, predictions replace it. Nothing new is
    submitted, nothing fails, no node changes.

    At most MAX_PLANS plans, fewer if many jobs wait; with more ends ahead than plans left, several are combined at
    the latest of them: never too early.
    """
    return Forecasts(snapshot, policy, now, plan(snapshot, policy, now)).forecast(job_ids, part=part, work=work)


class Start(NamedTuple):
    """The moment of a forecast at which a job starts: the snapshot before it, and the jobs that had ended by then."""

    snapshot: Snapshot
    now: float
    ended: Sequence[RunningJob]


class Forecasts:
    """The forecasts of one snapshot with this plan: each continues where the one before it stopped, so that many cost
    no more than one."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, current_plan: Plan) -> None:
        self._snapshot, self._policy, self._now, self._plan = snapshot, policy, now, current_plan
        self._courses: dict[tuple[float, int], _Course] = {}

    def forecast(self, job_ids: Collection[int], *, part: float, work: int = MAX_WORK) -> Forecast:
        course = self._courses.get((part, work))
        if course is None:
            size = len(self._snapshot.jobs) + len(self._snapshot.nodes)
            plans = max(min(MAX_PLANS, work // max(size, 1)), 8)
            course = _Course(self._snapshot, self._now, part, plans)
            course.follow(self._plan)
            self._courses[part, work] = course
        requested = set(job_ids) & {job.id for job in self._snapshot.jobs}
        while requested - course.starts.keys() and course.go_on():
            course.follow(plan(course.snapshot, self._policy, course.now))
        is_open = bool(requested - course.starts.keys())
        # The forecast may go beyond the last of these starts: that part was made for other jobs.
        until = course.now if is_open else max((course.starts[id] for id in requested), default=self._now)
        starts = {id: at for id, at in course.starts.items() if id in job_ids and at <= until}
        return Forecast(starts, inf if is_open and not course.events() else until, course.ending, course.starting)

    def start(self, job_id: int, *, work: int = MAX_WORK) -> Start | None:
        """Return where the forecast that gave `p90_at` starts this job; None: nowhere."""
        course = self._courses.get((1.0, work))
        return None if course is None else course.moments.get(job_id)

    def estimates(self, job_ids: Collection[int], *, typical: float, work: int = MAX_WORK) -> dict[int, Estimate]:
        late = self.forecast(job_ids, part=1.0, work=work)
        soon = self.forecast(job_ids, part=min(max(typical, 0.0), 1.0), work=work)
        unlimited = sum(job.ends_by is None for job in self._snapshot.running)
        return {job_id: _estimate(job_id, late, soon, unlimited) for job_id in job_ids}


def _estimate(job_id: int, late: Forecast, soon: Forecast, unlimited: int) -> Estimate:
    p50_at, p90_at = soon.starts.get(job_id), late.starts.get(job_id)
    # Jobs pass others in different orders in the two: the first may be later, or be blocked by a job without a limit
    # that started before; then there is no estimate.
    if p50_at is None or p90_at is None:
        p50_at = p90_at = None
    else:
        p50_at, p90_at = min(p50_at, p90_at), max(p50_at, p90_at)
    seen_until = min(late.seen_until, soon.seen_until)
    after = seen_until if p90_at is None and seen_until < inf else None
    ending, starting = late.ending.get(job_id, 0), late.starting.get(job_id, 0)
    return Estimate(p50_at, p90_at, after, ending, starting, unlimited)


class _Course:
    """The cluster over time, cycle by cycle, at most `plans` of them. `ends`: when each running job really ends, which
    the engine may not know."""

    def __init__(self, snapshot: Snapshot, now: float, part: float, plans: int) -> None:
        self.snapshot, self.now, self.part, self.plans_left = snapshot, now, part, plans
        self.ends: dict[int, float] = {}
        # When the jobs inside each hard booking are stopped; those that have not ended before wait again then.
        self.stops = {booking.id: booking.ends_at for booking in snapshot.bookings if booking.is_hard}
        self.stopped: set[int] = set()
        for job in snapshot.running:
            self._end_with_booking(job.job_id, _end(job, now, part), job.booking_id)
        self.starts: dict[int, float] = {}
        self.ending: dict[int, int] = {}
        self.starting: dict[int, int] = {}
        self.moments: dict[int, Start] = {}
        self.ended_jobs: tuple[RunningJob, ...] = ()
        self.wakes: set[float] = set()
        self.ended = 0

    def follow(self, new_plan: Plan) -> None:
        """Apply the plan of one cycle: placed jobs start at once, preempted ones end when their grace is over."""
        self.plans_left -= 1
        jobs = {job.id: job for job in self.snapshot.jobs} if new_plan.placements else {}
        for placement in new_plan.placements:
            job_id = placement.job_id
            if job_id not in self.starts:
                self.ending[job_id], self.starting[job_id] = self.ended, len(self.starts)
                self.starts[job_id] = self.now
                self.moments[job_id] = Start(self.snapshot, self.now, self.ended_jobs)
            end = self.now + _run_seconds(jobs[job_id], self.part)
            self._end_with_booking(job_id, end, placement.booking_id)
        grace = {job.job_id: job.grace_seconds for job in self.snapshot.running} if new_plan.preemptions else {}
        for victim in (victim for preemption in new_plan.preemptions for victim in preemption.victims):
            self.ends[victim] = min(self.ends[victim], self.now + grace[victim])
        after = stopping(started(self.snapshot, new_plan.placements, self.now), new_plan.preemptions, new_plan.claims)
        promised_id = new_plan.reservation.job_id if new_plan.reservation else None
        self.snapshot = replace(after, reserved_job_id=promised_id)
        self.wakes = _wakes(new_plan, self.snapshot.jobs)

    def events(self) -> list[float]:
        """Return the moments ahead at which something may change, in order."""
        booked = [at for booking in self.snapshot.bookings for at in (booking.starts_at, booking.ends_at)]
        moments = {at for at in (*self.ends.values(), *self.wakes, *booked) if self.now < at < inf}
        return sorted(moments)

    def go_on(self) -> bool:
        """Go on to the next moment; return False if none is ahead, or no plan is left for it."""
        events = self.events()
        if not events or not self.plans_left:
            return False
        together = -(-len(events) // self.plans_left)
        self.now = events[min(together, len(events)) - 1]
        over = {job_id for job_id, at in self.ends.items() if at <= self.now}
        preempted = [
            job.job_id
            for job in self.snapshot.running
            if (job.is_stopping and job.stopping_for is not None) or job.job_id in self.stopped
        ]
        self.ended_jobs += tuple(sorted((job for job in self.snapshot.running if job.job_id in over), key=self._end_of))
        self.snapshot = ended(self.snapshot, over, requeued=[job_id for job_id in preempted if job_id in over])
        for job_id in over:
            del self.ends[job_id]
        self.ended += len(over)
        return True

    def _end_with_booking(self, job_id: int, end: float, booking_id: int | None) -> None:
        """Note when a job ends; the end of its booking stops it."""
        stop = max(self.stops.get(booking_id or 0, inf), self.now)
        self.ends[job_id] = min(end, stop)
        if stop < end:
            self.stopped.add(job_id)
        else:
            self.stopped.discard(job_id)

    def _end_of(self, job: RunningJob) -> tuple[float, int]:
        return self.ends[job.job_id], job.job_id


def _end(job: RunningJob, now: float, part: float) -> float:
    if job.is_stopping:
        return now + job.grace_seconds
    if job.predicted_end_at is not None and part < 1.0:
        return max(job.predicted_end_at, now + 1.0)
    return inf if job.ends_by is None else now + max((job.ends_by - now) * part, 1.0)


def _run_seconds(job: Job, part: float) -> float:
    """Return how long a new job runs: its prediction, or else this part of its limit. The whole limit is the upper
    bound, which no prediction changes."""
    if job.predicted_seconds is not None and part < 1.0:
        return max(job.predicted_seconds, 1.0)
    return inf if job.max_runtime_seconds is None else max(job.max_runtime_seconds * part, 1.0)


def _wakes(new_plan: Plan, jobs: Iterable[Job]) -> set[float]:
    """Return when a waiting job becomes eligible, or may preempt."""
    times = {group.evidence.get("at") for group in new_plan.waits if group.code == "preempt_delay"}
    delays = {datetime.fromisoformat(at).timestamp() + 1 for at in times if isinstance(at, str)}
    return {job.eligible_at for job in jobs} | delays
