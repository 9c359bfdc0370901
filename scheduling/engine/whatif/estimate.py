"""Says when waiting jobs will probably start: the same plan(), run forward over the ends of what runs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import NamedTuple

from scheduling.engine.forward import ended, started, stopping
from scheduling.engine.model import Job, Plan, Policy, RunningJob, Snapshot
from scheduling.engine.planner import plan

MAX_PLANS = 200
# Nodes and waiting jobs, times plans, that one forecast may cost: with 10,000 jobs it looks at 10 moments, not at 200.
MAX_WORK = 100_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a job starts: `p50_at` if jobs use their limits as jobs of late did, `p90_at` if all use them up; None: that
    could not be told. `after`: what was looked at ended there, so it starts later. `jobs_ending`, `jobs_starting`: how
    many running jobs end, and waiting ones start, before `p90_at`. `unlimited`: running jobs without a time limit."""

    p50_at: float | None
    p90_at: float | None
    after: float | None = None
    jobs_ending: int = 0
    jobs_starting: int = 0
    unlimited: int = 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """`starts`: job -> when. `seen_until`: how far it looked, inf: to the last end. `ending`, `starting`: job ->
    how many others had ended and started before it did."""

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
    """For each of these waiting jobs. `typical`: the part of its time limit that a job uses in the median, 0 to 1.
    `work`: how much each of two forecasts may cost."""
    return Forecasts(snapshot, policy, now, plan(snapshot, policy, now)).estimates(job_ids, typical=typical, work=work)


def forecast(
    snapshot: Snapshot, policy: Policy, now: float, job_ids: Collection[int], *, part: float, work: int = MAX_WORK
) -> Forecast:
    """When these jobs start if each running job uses `part` of what is left of its time limit, and each new one `part`
    of its limit; those without a limit never end. Nothing new is submitted, nothing fails, no node comes or goes.

    At most MAX_PLANS plans, fewer where many jobs wait; with more ends ahead than plans left, several are taken
    together, at the latest of them: never too early.
    """
    return Forecasts(snapshot, policy, now, plan(snapshot, policy, now)).forecast(job_ids, part=part, work=work)


class Start(NamedTuple):
    """The moment of a forecast at which a job starts: the snapshot before that, and what had ended by then."""

    snapshot: Snapshot
    now: float
    ended: Sequence[RunningJob]


class Forecasts:
    """Those of one snapshot, `made` being its plan: each goes on from where the one before it stopped, so that many
    cost what one does."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: float, made: Plan) -> None:
        self._snapshot, self._policy, self._now, self._made = snapshot, policy, now, made
        self._courses: dict[tuple[float, int], _Course] = {}

    def forecast(self, job_ids: Collection[int], *, part: float, work: int = MAX_WORK) -> Forecast:
        course = self._courses.get((part, work))
        if course is None:
            size = len(self._snapshot.jobs) + len(self._snapshot.nodes)
            plans = max(min(MAX_PLANS, work // max(size, 1)), 8)
            course = _Course(self._snapshot, self._now, part, plans)
            course.follow(self._made)
            self._courses[part, work] = course
        wanted = set(job_ids) & {job.id for job in self._snapshot.jobs}
        while wanted - course.starts.keys() and course.go_on():
            course.follow(plan(course.snapshot, self._policy, course.now))
        is_open = bool(wanted - course.starts.keys())
        # What it looked at beyond the start of the last of these, it did for others.
        until = course.now if is_open else max((course.starts[id] for id in wanted), default=self._now)
        starts = {id: at for id, at in course.starts.items() if id in job_ids and at <= until}
        return Forecast(starts, inf if is_open and not course.events() else until, course.ending, course.starting)

    def start(self, job_id: int, *, work: int = MAX_WORK) -> Start | None:
        """Where the forecast by which `p90_at` was found starts this job; None: it does not."""
        course = self._courses.get((1.0, work))
        return None if course is None else course.moments.get(job_id)

    def estimates(self, job_ids: Collection[int], *, typical: float, work: int = MAX_WORK) -> dict[int, Estimate]:
        late = self.forecast(job_ids, part=1.0, work=work)
        soon = self.forecast(job_ids, part=min(max(typical, 0.0), 1.0), work=work)
        unlimited = sum(one.ends_by is None for one in self._snapshot.running)
        return {job_id: _estimate(job_id, late, soon, unlimited) for job_id in job_ids}


def _estimate(job_id: int, late: Forecast, soon: Forecast, unlimited: int) -> Estimate:
    p50_at, p90_at = soon.starts.get(job_id), late.starts.get(job_id)
    # Which jobs pass which differs between the two: the first may come out later, or be blocked by a job without a
    # limit that came before, and then nothing is promised.
    if p50_at is None or p90_at is None:
        p50_at = p90_at = None
    else:
        p50_at, p90_at = min(p50_at, p90_at), max(p50_at, p90_at)
    seen_until = min(late.seen_until, soon.seen_until)
    after = seen_until if p90_at is None and seen_until < inf else None
    ending, starting = late.ending.get(job_id, 0), late.starting.get(job_id, 0)
    return Estimate(p50_at, p90_at, after, ending, starting, unlimited)


class _Course:
    """The cluster as it goes on, one cycle after the other, at most `plans` of them: `ends` says when each running job
    really ends, which the engine may not know."""

    def __init__(self, snapshot: Snapshot, now: float, part: float, plans: int) -> None:
        self.snapshot, self.now, self.part, self.plans_left = snapshot, now, part, plans
        self.ends = {one.job_id: _end(one, now, part) for one in snapshot.running}
        self.starts: dict[int, float] = {}
        self.ending: dict[int, int] = {}
        self.starting: dict[int, int] = {}
        self.moments: dict[int, Start] = {}
        self.gone: tuple[RunningJob, ...] = ()
        self.wakes: set[float] = set()
        self.ended = 0

    def follow(self, made: Plan) -> None:
        """The plan of one cycle: what it places starts at once, what it preempts ends when its grace is over."""
        self.plans_left -= 1
        limits = {job.id: job.max_runtime_seconds for job in self.snapshot.jobs} if made.placements else {}
        for placement in made.placements:
            job_id, limit = placement.job_id, limits[placement.job_id]
            if job_id not in self.starts:
                self.ending[job_id], self.starting[job_id] = self.ended, len(self.starts)
                self.starts[job_id] = self.now
                self.moments[job_id] = Start(self.snapshot, self.now, self.gone)
            self.ends[job_id] = inf if limit is None else self.now + max(limit * self.part, 1.0)
        grace = {one.job_id: one.grace_seconds for one in self.snapshot.running} if made.preemptions else {}
        for victim in (victim for one in made.preemptions for victim in one.victims):
            self.ends[victim] = min(self.ends[victim], self.now + grace[victim])
        after = stopping(started(self.snapshot, made.placements, self.now), made.preemptions, made.claims)
        reserved = made.reservation.job_id if made.reservation else None
        self.snapshot = replace(after, reserved_job_id=reserved)
        self.wakes = _wakes(made, self.snapshot.jobs)

    def events(self) -> list[float]:
        """The moments ahead at which something may change, in order."""
        moments = {at for at in (*self.ends.values(), *self.wakes) if self.now < at < inf}
        return sorted(moments)

    def go_on(self) -> bool:
        """On to the next moment; False: none is ahead, or no plan is left for it."""
        events = self.events()
        if not events or not self.plans_left:
            return False
        together = -(-len(events) // self.plans_left)
        self.now = events[min(together, len(events)) - 1]
        over = {job_id for job_id, at in self.ends.items() if at <= self.now}
        back = [one.job_id for one in self.snapshot.running if one.is_stopping and one.stopping_for is not None]
        self.gone += tuple(sorted((one for one in self.snapshot.running if one.job_id in over), key=self._end_of))
        self.snapshot = ended(self.snapshot, over, requeued=[job_id for job_id in back if job_id in over])
        for job_id in over:
            del self.ends[job_id]
        self.ended += len(over)
        return True

    def _end_of(self, one: RunningJob) -> tuple[float, int]:
        return self.ends[one.job_id], one.job_id


def _end(one: RunningJob, now: float, part: float) -> float:
    if one.is_stopping:
        return now + one.grace_seconds
    return inf if one.ends_by is None else now + max((one.ends_by - now) * part, 1.0)


def _wakes(made: Plan, jobs: Iterable[Job]) -> set[float]:
    """When a waiting job becomes eligible, or may preempt."""
    told = {wait.evidence.get("at") for wait in made.waits if wait.code == "preempt_delay"}
    delays = {datetime.fromisoformat(at).timestamp() + 1 for at in told if isinstance(at, str)}
    return {job.eligible_at for job in jobs} | delays
