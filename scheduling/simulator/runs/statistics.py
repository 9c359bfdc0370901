"""Sums up replays: waiting times, utilisation, preemptions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean, stdev

from scheduling.simulator.runs.trace_replay import JobResult, Run

# These figures of a distribution are always reported together: a mean alone hides starvation.
STATISTICS = ("mean", "p50", "p99", "max")


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one replay. `utilisation_percent`: GPU time that jobs ran, as a part of all GPU time from the
    first submission to the last end. The cost of a preemption is not counted as use."""

    queue_hours: dict[str, float]
    jct_hours: dict[str, float]
    utilisation_percent: float
    preemptions_per_job: float
    jobs: int


def figures(parts: Sequence[tuple[Run, int]]) -> Figures:
    """Return the figures of replays side by side, each with its number of GPUs: their jobs are counted together."""
    results = [result for run, _ in parts for result in run.results]
    used = sum(result.job.run_seconds * result.job.gpus for result in results)
    available = sum(_span(run) * gpus for run, gpus in parts)
    return Figures(
        queue_hours=_spread(results, lambda result: result.wait_seconds / 3600.0),
        jct_hours=_spread(results, lambda result: result.completion_seconds / 3600.0),
        utilisation_percent=100.0 * used / available if available else 0.0,
        preemptions_per_job=sum(result.preemptions for result in results) / len(results),
        jobs=len(results),
    )


def summary(by_seed: Sequence[Figures]) -> dict[str, object]:
    """Return the mean over seeds of each figure; `sd`: the sample standard deviation of the queue's, 0 for one seed."""
    return {
        "queue_hours": {name: _mean([seed.queue_hours[name] for seed in by_seed]) for name in STATISTICS},
        "jct_hours": {name: _mean([seed.jct_hours[name] for seed in by_seed]) for name in STATISTICS},
        "utilisation_percent": _mean([seed.utilisation_percent for seed in by_seed]),
        "preemptions_per_job": _mean([seed.preemptions_per_job for seed in by_seed]),
        "jobs": by_seed[0].jobs,
        "seeds": len(by_seed),
        "sd": {"queue_hours": {name: _sd([seed.queue_hours[name] for seed in by_seed]) for name in STATISTICS}},
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile by nearest rank: the smallest value that so many percent of them do not exceed."""
    return ordered[max(ceil(len(ordered) * percent / 100.0), 1) - 1]


def _spread(results: Sequence[JobResult], of: Callable[[JobResult], float]) -> dict[str, float]:
    ordered = sorted(map(of, results))
    middle, late = percentile(ordered, 50), percentile(ordered, 99)
    return {"mean": mean(ordered), "p50": middle, "p99": late, "max": ordered[-1]}


def _span(run: Run) -> float:
    return max(result.ended_at for result in run.results) - min(result.job.submitted_at for result in run.results)


def _mean(values: Sequence[float]) -> float:
    return round(mean(values), 4)


def _sd(values: Sequence[float]) -> float:
    return round(stdev(values), 4) if len(values) > 1 else 0.0
