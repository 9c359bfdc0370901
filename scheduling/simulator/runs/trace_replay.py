"""Replays a trace in discrete time: at each arrival or end the real plan() decides, and time jumps to the next."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

from scheduling.engine.forward import ended, started, stopping
from scheduling.engine.model import Job, Plan, Policy, Snapshot
from scheduling.engine.planner import plan
from scheduling.engine.queue.ordering import band
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.runs.usage import Ledger
from scheduling.simulator.traces.jobs import TraceJob

# Rules that wait (a delay before preemption, a minimum run time) are checked again after this long at most.
_RECHECK_SECONDS = 60.0

Progress = Callable[[int], None]


@dataclass(slots=True)
class JobResult:
    """The outcome of a job; times on the trace's clock. `charged_seconds`: the cost of its preemptions."""

    job: TraceJob
    first_started_at: float = inf
    ended_at: float = inf
    preemptions: int = 0
    charged_seconds: float = 0.0

    @property
    def wait_seconds(self) -> float:
        """Return all the time in which it neither ran nor paid for a preemption."""
        return max(self.ended_at - self.job.submitted_at - self.job.run_seconds - self.charged_seconds, 0.0)

    @property
    def completion_seconds(self) -> float:
        return self.ended_at - self.job.submitted_at


class RunTimePredictor(Protocol):
    """Predicts run times during a replay from the ends until then."""

    def predicted_seconds(self, job_id: int, now: float) -> float | None: ...

    def note_start(self, job_id: int, now: float) -> None: ...

    def learn_end(self, job_id: int, now: float) -> None: ...


# The snapshot after the plan of a moment, that moment, and the outcome of each job so far.
Observer = Callable[[Snapshot, float, Mapping[int, JobResult]], None]


@dataclass(slots=True)
class Run:
    """The outcome of a replay. `timeline`: (time, jobs waiting, GPUs in use) after each event."""

    results: list[JobResult]
    timeline: list[tuple[float, int, int]] = field(default_factory=list)


def replay(
    jobs: Sequence[TraceJob],
    cluster: Cluster,
    policy: Policy,
    *,
    limits: str = "given",
    charge_seconds: float = 45.0,
    progress: Progress | None = None,
    observer: Observer | None = None,
    predictor: RunTimePredictor | None = None,
) -> Run:
    """Run every job to its end. Jobs sorted by time of submission; each must fit on the empty cluster.

    A preempted job continues later from where it was, after holding its GPUs idle for `charge_seconds`.
    `progress` is called now and then with the number of jobs that have ended, `observer` after each plan that follows
    an arrival. `predictor`: replaces the predictions of waiting jobs before each plan, and learns from the ends.
    """
    clock = _Clock(jobs, cluster, policy, limits, charge_seconds, predictor)
    arrived = 0
    while clock.step():
        if observer is not None and clock.arrived > arrived:
            observer(clock.snapshot, clock.run.timeline[-1][0], clock.results)
            arrived = clock.arrived
        if progress is not None and len(clock.run.timeline) % 50 == 0:
            progress(clock.done)
    return clock.run


class _Clock:
    """The state of one replay between two events."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        cluster: Cluster,
        policy: Policy,
        limits: str,
        charge_seconds: float,
        predictor: RunTimePredictor | None = None,
    ) -> None:
        self.policy, self.charge_seconds, self.predictor = policy, charge_seconds, predictor
        self.run = Run([JobResult(job) for job in jobs])
        self.results = {result.job.id: result for result in self.run.results}
        self.remaining_seconds = {job.id: job.run_seconds for job in jobs}
        self.arrivals = cluster.waiting(jobs, limits=limits)
        self.by_id = {job.id: job for job in self.arrivals}
        self.arrived = self.done = 0
        is_mixed = len({band(job.priority) for job in jobs}) > 1 or any(cluster.guarantees.values())
        self.may_preempt = policy.preemption and is_mixed
        self.ends: list[tuple[float, int]] = []
        self.recheck_at = inf
        self.gpu_count = self.free = cluster.gpu_count
        tenants = cluster.tenants(jobs)
        self.snapshot = Snapshot((), (), cluster.nodes(), tenants)
        self.ledger = Ledger(tenants, policy, jobs[0].submitted_at)

    def step(self) -> bool:
        """Go to the next event, with all that happens at one time as one; return False if there is none."""
        now = min(self._next_arrival(), self.ends[0][0] if self.ends else inf, self.recheck_at)
        if now == inf:
            return False
        is_due = now >= self.recheck_at
        freed = self._end_due(now)
        new = self._arrive(now)
        if freed or is_due or any(self.may_preempt or job.request.gpu_count <= self.free for job in new):
            self._plan(now)
        if freed or self.free != self.gpu_count:
            self.ledger.changed(self.snapshot.running, now)
        self.run.timeline.append((now, len(self.snapshot.jobs), self.gpu_count - self.free))
        return True

    def _next_arrival(self) -> float:
        return self.arrivals[self.arrived].queued_at if self.arrived < len(self.arrivals) else inf

    def _arrive(self, now: float) -> list[Job]:
        first = self.arrived
        while self._next_arrival() <= now:
            self.arrived += 1
        new = self.arrivals[first : self.arrived]
        if new:
            self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, *new))
        return new

    def _end_due(self, now: float) -> bool:
        due = set()
        while self.ends and self.ends[0][0] <= now:
            due.add(heappop(self.ends)[1])
        for job_id in due:
            self.results[job_id].ended_at = now
            self.free += self.by_id[job_id].request.gpu_count
            if self.predictor is not None:
                self.predictor.learn_end(job_id, now)
        self.done += len(due)
        self.snapshot = ended(self.snapshot, due)
        return bool(due)

    def _plan(self, now: float) -> None:
        """Plan until no job is preempted: a preempted job releases everything at once."""
        self.recheck_at = inf
        if self.predictor is not None:
            jobs = tuple(self._predicted(job, self.predictor, now) for job in self.snapshot.jobs)
            self.snapshot = replace(self.snapshot, jobs=jobs)
        while True:
            self.snapshot = replace(self.snapshot, tenants=self.ledger.tenants(now))
            new_plan = plan(self.snapshot, self.policy, now)
            self._start(new_plan, now)
            victims = [victim for preemption in new_plan.preemptions for victim in preemption.victims]
            if not victims:
                break
            self.snapshot = stopping(self.snapshot, new_plan.preemptions, new_plan.claims)
            self._stop(victims, now)
        if any(group.code == "preempt_delay" for group in new_plan.waits):
            self.recheck_at = now + _RECHECK_SECONDS

    def _predicted(self, job: Job, predictor: RunTimePredictor, now: float) -> Job:
        seconds = predictor.predicted_seconds(job.id, now)
        return job if seconds == job.predicted_seconds else replace(job, predicted_seconds=seconds)

    def _start(self, new_plan: Plan, now: float) -> None:
        for placement in new_plan.placements:
            result = self.results[placement.job_id]
            result.first_started_at = min(result.first_started_at, now)
            self.free -= self.by_id[placement.job_id].request.gpu_count
            heappush(self.ends, (now + self.remaining_seconds[placement.job_id], placement.job_id))
            if self.predictor is not None:
                self.predictor.note_start(placement.job_id, now)
        self.snapshot = started(self.snapshot, new_plan.placements, now)
        reservation = new_plan.reservation
        self.snapshot = replace(self.snapshot, reserved_job_id=reservation.job_id if reservation else None)

    def _stop(self, victims: Collection[int], now: float) -> None:
        for end, job_id in self.ends:
            if job_id in victims:
                result = self.results[job_id]
                result.preemptions += 1
                result.charged_seconds += self.charge_seconds
                self.remaining_seconds[job_id] = end - now + self.charge_seconds
                self.free += self.by_id[job_id].request.gpu_count
        self.ends = [entry for entry in self.ends if entry[1] not in victims]
        heapify(self.ends)
        self.snapshot = ended(self.snapshot, victims)
        self.snapshot = replace(self.snapshot, jobs=(*self.snapshot.jobs, *self._requeued(victims)))

    def _requeued(self, victims: Iterable[int]) -> list[Job]:
        """Return the victims as waiting jobs, with their original queue time; the prediction is reduced by the time
        served."""
        jobs = []
        for job_id in victims:
            job = self.by_id[job_id]
            served = self.results[job_id].job.run_seconds - self.remaining_seconds[job_id]
            predicted = None if job.predicted_seconds is None else max(job.predicted_seconds - served, 1.0)
            jobs.append(replace(job, predicted_seconds=predicted))
        return jobs
