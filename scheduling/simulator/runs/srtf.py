"""Preemptive shortest-remaining-time, for reference: at each event plan() chooses which unfinished jobs run."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from scheduling.engine.model import Job, Policy, Snapshot
from scheduling.engine.planner import plan
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.runs.trace_replay import JobResult, Progress, Run
from scheduling.simulator.traces.jobs import TraceJob

# A job whose prediction has run out is expected to run this much longer.
_MIN_SECONDS = 1.0


def replay_srtf(
    jobs: Sequence[TraceJob],
    cluster: Cluster,
    policy: Policy,
    *,
    charge_seconds: float = 45.0,
    progress: Progress | None = None,
) -> Run:
    """Replay as `replay`, but plan() places all unfinished jobs on the empty cluster; those that ran and are not placed
    are preempted. Moving to other GPUs is free. Jobs without a prediction come last."""
    clock = _Clock(jobs, cluster, policy, charge_seconds)
    while clock.step():
        if progress is not None and len(clock.run.timeline) % 50 == 0:
            progress(clock.done)
    return clock.run


class _Clock:
    def __init__(self, jobs: Sequence[TraceJob], cluster: Cluster, policy: Policy, charge_seconds: float) -> None:
        self.policy, self.charge_seconds = policy, charge_seconds
        self.run = Run([JobResult(job) for job in jobs])
        self.results = {result.job.id: result for result in self.run.results}
        self.remaining_seconds = {job.id: job.run_seconds for job in jobs}
        self.served = dict.fromkeys(self.remaining_seconds, 0.0)
        self.arrivals = cluster.waiting(jobs)
        self.arrived = self.done = 0
        self.unfinished: dict[int, Job] = {}
        self.running: set[int] = set()
        self.at = jobs[0].submitted_at
        self.empty = Snapshot((), (), cluster.nodes(), cluster.tenants(jobs))

    def step(self) -> bool:
        next_end = self.at + min((self.remaining_seconds[job_id] for job_id in self.running), default=inf)
        now = min(self._next_arrival(), next_end)
        if now == inf:
            return False
        self._serve(now)
        while self._next_arrival() <= now:
            job = self.arrivals[self.arrived]
            self.unfinished[job.id] = job
            self.arrived += 1
        self._plan(now)
        used = sum(self.unfinished[job_id].request.gpu_count for job_id in self.running)
        self.run.timeline.append((now, len(self.unfinished) - len(self.running), used))
        return True

    def _next_arrival(self) -> float:
        return self.arrivals[self.arrived].queued_at if self.arrived < len(self.arrivals) else inf

    def _serve(self, now: float) -> None:
        """Let the running jobs run until now."""
        # The job that ends next ends exactly now, whatever the sum of floats says.
        minimum = min((self.remaining_seconds[job_id] for job_id in self.running), default=inf)
        for job_id in sorted(self.running):
            is_done = self.remaining_seconds[job_id] == minimum and self.at + minimum <= now
            self.remaining_seconds[job_id] = 0.0 if is_done else self.remaining_seconds[job_id] - (now - self.at)
            self.served[job_id] += now - self.at
            if self.remaining_seconds[job_id] <= 0.0:
                self.results[job_id].ended_at = now
                self.running.discard(job_id)
                del self.unfinished[job_id]
                self.done += 1
        self.at = now

    def _plan(self, now: float) -> None:
        jobs = tuple(self._remaining(job) for job in self.unfinished.values())
        new_plan = plan(replace(self.empty, jobs=jobs), self.policy, now)
        placed = {placement.job_id for placement in new_plan.placements}
        for job_id in self.running - placed:
            result = self.results[job_id]
            result.preemptions += 1
            result.charged_seconds += self.charge_seconds
            self.remaining_seconds[job_id] += self.charge_seconds
        for job_id in placed - self.running:
            self.results[job_id].first_started_at = min(self.results[job_id].first_started_at, now)
        self.running = placed

    def _remaining(self, job: Job) -> Job:
        if job.predicted_seconds is None:
            return job
        return replace(job, predicted_seconds=max(job.predicted_seconds - self.served[job.id], _MIN_SECONDS))
