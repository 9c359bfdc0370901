"""Questions about the present cluster: each is a function of a `Present`, answered by plans of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from scheduling.engine.model import (
    ELEMENT_ID_STEP,
    Job,
    Plan,
    Policy,
    Preemption,
    Promise,
    RankPlacement,
    Reason,
    Snapshot,
    Tenant,
    public_id,
)
from scheduling.engine.planner import plan
from scheduling.engine.whatif.blockers import Blocker, blockers
from scheduling.engine.whatif.changes import Change
from scheduling.engine.whatif.counterfactual import Step, alternatives, obstacles
from scheduling.engine.whatif.effects import Effect, effect
from scheduling.engine.whatif.estimate import Estimate, Forecasts

# A start that moves by less than this is not reported as a delay.
NOTICEABLE_DELAY_SECONDS = 60.0
# The cost limit of a forecast about many jobs, and the number of waiting jobs that a changed limit is checked for.
QUEUE_WORK, MAX_FORESEEN = 20_000, 20


@dataclass(frozen=True, eq=False)
class Present:
    """The cluster at this moment. Results computed for one question are reused for the next."""

    snapshot: Snapshot
    policy: Policy
    now: float

    @cached_property
    def current_plan(self) -> Plan:
        return plan(self.snapshot, self.policy, self.now)

    @cached_property
    def forecasts(self) -> Forecasts:
        return Forecasts(self.snapshot, self.policy, self.now, self.current_plan)


@dataclass(frozen=True)
class Outlook:
    """The prospects of a waiting job. `steps`: its reason, then its further obstacles. `blockers`: the jobs whose end
    the estimate depends on; None: unknown. `tenants`: of the jobs whose end a step names."""

    steps: Sequence[Step]
    estimate: Estimate | None
    blockers: Sequence[Blocker] | None = None
    tenants: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Simulated:
    """The outcome of a simulated submit: the places of the jobs that would start now; and of the first job the reason
    if it would not, the jobs that it would preempt, its estimated start, and changes with which it would start now."""

    started: Mapping[int, tuple[RankPlacement, ...]]
    reason: Reason | None = None
    preemption: Preemption | None = None
    estimate: Estimate | None = None
    alternatives: Sequence[Change] = ()
    blockers: Sequence[Blocker] | None = None


@dataclass(frozen=True)
class Delayed:
    """A waiting job whose estimate a longer limit moves: id, before, and after (None: unknown)."""

    job_id: int
    tenant_id: int
    before: float
    after: float | None


@dataclass(frozen=True)
class Broken:
    """A promise that would be broken, and the time that it would move to (None: unknown)."""

    job_id: int
    tenant_id: int
    at: float
    then: float | None


def outlook(present: Present, job_id: int, typical: float) -> Outlook:
    """Return why a job waits, the changes that would cure that, and its estimate. `typical` as in `estimate`."""
    steps = obstacles(present.snapshot, present.policy, present.now, job_id, present.current_plan)
    estimate = present.forecasts.estimates([job_id], typical=typical)[job_id]
    named = {id for step in steps if step.change for id in step.change.jobs}
    tenants = {job.job_id: job.tenant_id for job in present.snapshot.running if job.job_id in named}
    return Outlook(steps, estimate, _blockers(present, job_id, estimate), tenants)


def _blockers(present: Present, job_id: int, estimate: Estimate) -> Sequence[Blocker] | None:
    start = None if estimate.p90_at is None else present.forecasts.start(job_id)
    return None if start is None else blockers(start, job_id, present.policy)


def reason(present: Present, job_id: int) -> Outlook:
    """Return only the reason, from one plan, for when many jobs wait."""
    current_reason = present.current_plan.reason_of(job_id)
    return Outlook([Step(current_reason, None, False)] if current_reason else [], None)


def queue(present: Present, typical: float) -> dict[int, Estimate]:
    """Return when each waiting job will probably start; for an array the next element."""
    ids = [job.id for job in present.snapshot.jobs if job.id < ELEMENT_ID_STEP]
    return present.forecasts.estimates(ids, typical=typical, work=QUEUE_WORK)


def simulated(present: Present, jobs: Sequence[Job], typical: float | None) -> Simulated:
    """Simulate a submit of these jobs. `typical` None: too many jobs wait for more than one plan."""
    first = jobs[0].id
    then = Present(replace(present.snapshot, jobs=(*present.snapshot.jobs, *jobs)), present.policy, present.now)
    places = {placement.job_id: placement.ranks for placement in then.current_plan.placements}
    started = {job.id: places[job.id] for job in jobs if job.id in places}
    if first in started:
        return Simulated(started)
    preemption = next((entry for entry in then.current_plan.preemptions if entry.job_id == first), None)
    result = Simulated(started, then.current_plan.reason_of(first), preemption)
    if typical is None:
        return result
    estimate = then.forecasts.estimates([first], typical=typical)[first]
    ways = alternatives(then.snapshot, then.policy, then.now, first, current_plan=then.current_plan)
    return replace(result, estimate=estimate, alternatives=ways, blockers=_blockers(then, first, estimate))


def changed(present: Present, tenants: Sequence[Tenant], policy: Policy) -> Effect:
    """Return the effect of other limits of the tenants or another policy now."""
    return effect(present.current_plan, plan(replace(present.snapshot, tenants=tuple(tenants)), policy, present.now))


# --- a longer time limit ----------------------------------------------------------------------------------------------


def extend_effects(
    present: Present, live: Sequence[int], seconds: int, *, is_small: bool, is_foreseen: bool
) -> tuple[Broken | None, list[Delayed]]:
    """Return the promise that breaks, and the jobs that start later, if these running jobs may run this many seconds.
    `is_small`: False uses the promise of the latest cycle; `is_foreseen`: False skips the delays, as too many wait."""
    longer = {
        job.job_id: replace(job, ends_by=job.started_at + seconds)
        for job in present.snapshot.running
        if job.job_id in live and job.ends_by is not None
    }
    if not longer or not present.snapshot.jobs:
        return None, []
    running = tuple(longer.get(job.job_id, job) for job in present.snapshot.running)
    then = replace(present, snapshot=replace(present.snapshot, running=running))
    return _broken(present, then, is_small), _delayed(present, then) if is_foreseen else []


def _broken(present: Present, then: Present, is_small: bool) -> Broken | None:
    promise = _promise(present, is_small)
    if promise is None:
        return None
    with_it = plan(_alone(then.snapshot, promise), then.policy, then.now)
    if any(placement.job_id == promise.job_id for placement in with_it.placements):
        return None
    at = with_it.reservation.at if with_it.reservation else None
    if at is not None and at <= promise.at + NOTICEABLE_DELAY_SECONDS:
        return None
    tenant_id = next(job.tenant_id for job in present.snapshot.jobs if job.id == promise.job_id)
    return Broken(public_id(promise.job_id), tenant_id, promise.at, at)


def _promise(present: Present, is_small: bool) -> Promise | None:
    """Return the current promise; with many waiting jobs only if the latest cycle made one."""
    if is_small:
        promise = present.current_plan.reservation
    else:
        promise = Promise(present.snapshot.reserved_job_id, 0.0, ()) if present.snapshot.reserved_job_id else None
    return plan(_alone(present.snapshot, promise), present.policy, present.now).reservation if promise else None


def _alone(snapshot: Snapshot, promise: Promise) -> Snapshot:
    """Return the snapshot with only the jobs that go before the promised one: jobs that pass it do not delay it."""
    ahead = {promise.job_id, *(nomination.job_id for nomination in snapshot.claims)}
    return replace(
        snapshot, jobs=tuple(job for job in snapshot.jobs if job.id in ahead), reserved_job_id=promise.job_id
    )


def _delayed(present: Present, then: Present) -> list[Delayed]:
    """Return the delayed jobs among the first in the queue."""
    # Of an array only the next element.
    jobs = [job for job in present.snapshot.jobs if job.id == public_id(job.id)]
    first = sorted(jobs, key=lambda job: (-job.priority, job.queued_at, job.id))[:MAX_FORESEEN]
    ids = [job.id for job in first]
    before, after = (state.forecasts.forecast(ids, part=1.0, work=QUEUE_WORK).starts for state in (present, then))
    moved = [Delayed(job.id, job.tenant_id, before[job.id], after.get(job.id)) for job in first if job.id in before]
    return [entry for entry in moved if entry.after is None or entry.after > entry.before + NOTICEABLE_DELAY_SECONDS]
