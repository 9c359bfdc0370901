"""What people ask about the cluster as it is: each question is a function of the present, answered by plans of it."""

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

# What moves by less is no delay to anybody.
NOTICEABLE_DELAY_SECONDS = 60.0
# How much a forecast about many jobs may cost; a changed limit is judged by so many of the first that wait.
QUEUE_WORK, MAX_FORESEEN = 20_000, 20


@dataclass(frozen=True, eq=False)
class Present:
    """The cluster at this moment. What was worked out for one question is there for the next."""

    snapshot: Snapshot
    policy: Policy
    now: float

    @cached_property
    def made(self) -> Plan:
        return plan(self.snapshot, self.policy, self.now)

    @cached_property
    def forecasts(self) -> Forecasts:
        return Forecasts(self.snapshot, self.policy, self.now, self.made)


@dataclass(frozen=True)
class Outlook:
    """What is known of a waiting job. `steps`: its reason, then what else stands in its way. `blockers`: the jobs whose
    end the estimate depends on; None: unknown. `tenants`: of the jobs whose end a step names."""

    steps: Sequence[Step]
    estimate: Estimate | None
    blockers: Sequence[Blocker] | None = None
    tenants: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Simulated:
    """What would become of jobs that nobody has submitted: where those would start that would start now, and of the
    first the reason why it would not, whom it would preempt, when it would start, and with which changes now."""

    started: Mapping[int, tuple[RankPlacement, ...]]
    reason: Reason | None = None
    preemption: Preemption | None = None
    estimate: Estimate | None = None
    alternatives: Sequence[Change] = ()
    blockers: Sequence[Blocker] | None = None


@dataclass(frozen=True)
class Delayed:
    """A waiting job whose estimate a longer limit moves: id, before, and after (None: nobody can say)."""

    job_id: int
    tenant_id: int
    before: float
    after: float | None


@dataclass(frozen=True)
class Broken:
    """A promise that would be broken, and to when it would move (None: nobody can say)."""

    job_id: int
    tenant_id: int
    at: float
    then: float | None


def outlook(here: Present, job_id: int, typical: float) -> Outlook:
    """Why a waiting job waits, what would cure that, and when it will probably start. `typical` as in `estimate`."""
    steps = obstacles(here.snapshot, here.policy, here.now, job_id, here.made)
    estimate = here.forecasts.estimates([job_id], typical=typical)[job_id]
    named = {id for step in steps if step.change for id in step.change.jobs}
    tenants = {one.job_id: one.tenant_id for one in here.snapshot.running if one.job_id in named}
    return Outlook(steps, estimate, _blockers(here, job_id, estimate), tenants)


def _blockers(here: Present, job_id: int, estimate: Estimate) -> Sequence[Blocker] | None:
    start = None if estimate.p90_at is None else here.forecasts.start(job_id)
    return None if start is None else blockers(start, job_id, here.policy)


def reason(here: Present, job_id: int) -> Outlook:
    """Of the same no more than one plan says, where many wait."""
    found = here.made.reason_of(job_id)
    return Outlook([Step(found, None, False)] if found else [], None)


def queue(here: Present, typical: float) -> dict[int, Estimate]:
    """When each waiting job will probably start; of an array the next element."""
    ids = [job.id for job in here.snapshot.jobs if job.id < ELEMENT_ID_STEP]
    return here.forecasts.estimates(ids, typical=typical, work=QUEUE_WORK)


def simulated(here: Present, jobs: Sequence[Job], typical: float | None) -> Simulated:
    """The jobs beside those that wait. `typical` None: so many wait that only the plan itself is made."""
    first = jobs[0].id
    then = Present(replace(here.snapshot, jobs=(*here.snapshot.jobs, *jobs)), here.policy, here.now)
    places = {placement.job_id: placement.ranks for placement in then.made.placements}
    started = {job.id: places[job.id] for job in jobs if job.id in places}
    if first in started:
        return Simulated(started)
    preemption = next((one for one in then.made.preemptions if one.job_id == first), None)
    found = Simulated(started, then.made.reason_of(first), preemption)
    if typical is None:
        return found
    estimate = then.forecasts.estimates([first], typical=typical)[first]
    ways = alternatives(then.snapshot, then.policy, then.now, first, made=then.made)
    return replace(found, estimate=estimate, alternatives=ways, blockers=_blockers(then, first, estimate))


def changed(here: Present, tenants: Sequence[Tenant], policy: Policy) -> Effect:
    """What other limits of the tenants or another policy would do now."""
    return effect(here.made, plan(replace(here.snapshot, tenants=tuple(tenants)), policy, here.now))


# --- a longer time limit ----------------------------------------------------------------------------------------------


def extend_effects(
    here: Present, live: Sequence[int], seconds: int, *, is_small: bool, is_foreseen: bool
) -> tuple[Broken | None, list[Delayed]]:
    """Whose promise breaks, and who starts later, if these jobs that run may run for so many seconds. `is_small`: else
    the promise of the latest cycle is taken; `is_foreseen`: else so many wait that nobody is told to start later."""
    longer = {
        one.job_id: replace(one, ends_by=one.started_at + seconds)
        for one in here.snapshot.running
        if one.job_id in live and one.ends_by is not None
    }
    if not longer or not here.snapshot.jobs:
        return None, []
    running = tuple(longer.get(one.job_id, one) for one in here.snapshot.running)
    then = replace(here, snapshot=replace(here.snapshot, running=running))
    return _broken(here, then, is_small), _delayed(here, then) if is_foreseen else []


def _broken(here: Present, then: Present, is_small: bool) -> Broken | None:
    promise = _promise(here, is_small)
    if promise is None:
        return None
    with_it = plan(_alone(then.snapshot, promise), then.policy, then.now)
    if any(one.job_id == promise.job_id for one in with_it.placements):
        return None
    at = with_it.reservation.at if with_it.reservation else None
    if at is not None and at <= promise.at + NOTICEABLE_DELAY_SECONDS:
        return None
    tenant_id = next(one.tenant_id for one in here.snapshot.jobs if one.id == promise.job_id)
    return Broken(public_id(promise.job_id), tenant_id, promise.at, at)


def _promise(here: Present, is_small: bool) -> Promise | None:
    """What the job that holds the reservation is promised; with many waiting jobs, if the latest cycle told of it."""
    if is_small:
        found = here.made.reservation
    else:
        found = Promise(here.snapshot.reserved_job_id, 0.0, ()) if here.snapshot.reserved_job_id else None
    return plan(_alone(here.snapshot, found), here.policy, here.now).reservation if found else None


def _alone(snapshot: Snapshot, promise: Promise) -> Snapshot:
    """With those alone that go before it: who passes the promised job does not delay it."""
    wanted = {promise.job_id, *(claim.job_id for claim in snapshot.claims)}
    return replace(
        snapshot, jobs=tuple(one for one in snapshot.jobs if one.id in wanted), reserved_job_id=promise.job_id
    )


def _delayed(here: Present, then: Present) -> list[Delayed]:
    """Of the first in the queue."""
    # Of an array only the next element.
    jobs = [one for one in here.snapshot.jobs if one.id == public_id(one.id)]
    first = sorted(jobs, key=lambda one: (-one.priority, one.queued_at, one.id))[:MAX_FORESEEN]
    ids = [one.id for one in first]
    before, after = (one.forecasts.forecast(ids, part=1.0, work=QUEUE_WORK).starts for one in (here, then))
    found = [Delayed(one.id, one.tenant_id, before[one.id], after.get(one.id)) for one in first if one.id in before]
    return [one for one in found if one.after is None or one.after > one.before + NOTICEABLE_DELAY_SECONDS]
