"""How often replayed jobs start at or before the p50 and the p90 of their estimate (A62)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import median

from scheduling.engine.model import Policy, Snapshot
from scheduling.engine.whatif.calibration import MIN_OUTCOMES, Outcome, calibration, coverage_percent
from scheduling.engine.whatif.estimate import Estimate, estimates
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.runs.trace_replay import JobResult, replay
from scheduling.simulator.traces.jobs import TraceJob

TRACES = Path(__file__).parents[3] / "shared" / "traces"
TRACE, TRACE_CLUSTER, TRACE_NODES = TRACES / "philly" / "philly_tuning.csv.gz", "103959", 3
# The calibration uses this many of the latest outcomes.
LATEST = 500
# At least this many percent of the jobs start at or before p90, and between these two at or before p50.
MIN_P90, MIN_P50, MAX_P50 = 85.0, 40.0, 60.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The estimate of a job that was submitted and had to wait, before and after the calibration."""

    job_id: int
    made_at: float
    plain: Estimate
    calibrated: Estimate


@dataclass(slots=True)
class Watch:
    """Estimates the start of every n-th job that waits after its submit, with the knowledge of that moment."""

    jobs: Sequence[TraceJob]
    policy: Policy
    every: int
    forecasts: list[Forecast] = field(default_factory=list)
    unknown: int = 0
    submitted: int = 0

    def __call__(self, snapshot: Snapshot, now: float, results: Mapping[int, JobResult]) -> None:
        for job in snapshot.jobs:
            if job.queued_at == now:
                self.submitted += 1
                if self.submitted % self.every == 0:
                    self._estimate(snapshot, job.id, now, results)

    def _estimate(self, snapshot: Snapshot, job_id: int, now: float, results: Mapping[int, JobResult]) -> None:
        ended = [job for job in self.jobs if results[job.id].ended_at <= now][-LATEST:]
        used = [job.run_seconds / job.limit_seconds for job in ended if job.limit_seconds]
        typical = median(used) if len(used) >= MIN_OUTCOMES else 0.5
        plain = estimates(snapshot, self.policy, now, [job_id], typical=typical)[job_id]
        if plain.p50_at is None or plain.p90_at is None:
            self.unknown += 1
            return
        started = [entry for entry in self.forecasts if results[entry.job_id].first_started_at <= now][-LATEST:]
        outcomes = [outcome(entry.plain, entry.made_at, results[entry.job_id].first_started_at) for entry in started]
        self.forecasts.append(Forecast(job_id, now, plain, calibration(outcomes).applied(plain, now)))


def outcome(estimate: Estimate, made_at: float, started_at: float) -> Outcome:
    """Return the outcome of an estimate. Raises ValueError for one without a range."""
    if estimate.p50_at is None or estimate.p90_at is None:
        raise ValueError("the estimate has no range")
    # Starts are compared to the second: two sums of equal seconds may differ in their last bits.
    return Outcome(estimate.p50_at - made_at, estimate.p90_at - made_at, max(started_at - made_at - 1e-3, 0.0))


def with_limits(jobs: Iterable[TraceJob], seed: int) -> list[TraceJob]:
    """Return the jobs with time limits of one to ten times their run times, as users set them."""
    rng = Random(seed)
    return [replace(job, limit_seconds=max(int(job.run_seconds * 10 ** rng.random()) + 1, 60)) for job in jobs]


def generated(count: int, seed: int) -> list[TraceJob]:
    """Return jobs of one to eight GPUs whose run times spread over three orders of magnitude."""
    rng = Random(seed)
    jobs, at = [], 0.0
    for number in range(1, count + 1):
        at += rng.expovariate(1 / 900)
        gpus, seconds = rng.choice((1, 1, 1, 2, 4, 8)), min(rng.lognormvariate(8.0, 1.2), 86400.0)
        jobs.append(TraceJob(number, f"j{number}", at, gpus, max(seconds, 60.0)))
    return with_limits(jobs, seed)


def replayed(jobs: Sequence[TraceJob], cluster: Cluster, policy: Policy, every: int) -> tuple[list[Outcome], int]:
    """Return the outcome of each calibrated estimate, and how many jobs got no estimate."""
    watch = Watch(jobs, policy, every)
    run = replay(jobs, cluster, policy, observer=watch)
    starts = {result.job.id: result.first_started_at for result in run.results}
    return [outcome(entry.calibrated, entry.made_at, starts[entry.job_id]) for entry in watch.forecasts], watch.unknown


def percentages(outcomes: Sequence[Outcome]) -> dict[str, float]:
    by_p50, by_p90 = coverage_percent(outcomes)
    return {"p50_coverage_percent": round(by_p50, 1), "p90_coverage_percent": round(by_p90, 1)}


def is_calibrated(coverage: dict[str, float]) -> bool:
    return MIN_P50 <= coverage["p50_coverage_percent"] <= MAX_P50 and coverage["p90_coverage_percent"] >= MIN_P90
