"""Sums up replays: how long jobs waited, how busy the cluster was, how often jobs were preempted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean, stdev

from scheduling.simulator.runs.trace_replay import JobResult, Run

# Of each distribution these are always told together: a mean alone hides who starves.
STATISTICS = ("mean", "p50", "p99", "max")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one replay. `utilisation_percent`: GPU time that jobs ran, of all there was from the first submission to the
    last end. What a preemption is charged with is not counted as use."""

    queue_hours: dict[str, float]
    jct_hours: dict[str, float]
    utilisation_percent: float
    preemptions_per_job: float
    jobs: int


def figures(parts: Sequence[tuple[Run, int]]) -> Figures:
    """Of replays side by side, each with the GPUs it had: their jobs are counted as one lot."""
    fates = [fate for run, _ in parts for fate in run.fates]
    used = sum(fate.job.run_seconds * fate.job.gpus for fate in fates)
    there = sum(_span(run) * gpus for run, gpus in parts)
    return Figures(
        queue_hours=_spread(fates, lambda fate: fate.wait_seconds / 3600.0),
        jct_hours=_spread(fates, lambda fate: fate.completion_seconds / 3600.0),
        utilisation_percent=100.0 * used / there if there else 0.0,
        preemptions_per_job=sum(fate.preemptions for fate in fates) / len(fates),
        jobs=len(fates),
    )


def summary(found: Sequence[Figures]) -> dict[str, object]:
    """The mean over seeds of each figure, and as `sd` the sample standard deviation of the queue's, 0 for one seed."""
    return {
        "queue_hours": {name: _mean([one.queue_hours[name] for one in found]) for name in STATISTICS},
        "jct_hours": {name: _mean([one.jct_hours[name] for one in found]) for name in STATISTICS},
        "utilisation_percent": _mean([one.utilisation_percent for one in found]),
        "preemptions_per_job": _mean([one.preemptions_per_job for one in found]),
        "jobs": found[0].jobs,
        "seeds": len(found),
        "sd": {"queue_hours": {name: _sd([one.queue_hours[name] for one in found]) for name in STATISTICS}},
    }


def percentile(ordered: Sequence[float], percent: float) -> float:
    """By nearest rank: the least value that so many percent of them do not exceed."""
    return ordered[max(ceil(len(ordered) * percent / 100.0), 1) - 1]


def _spread(fates: Sequence[JobResult], of: Callable[[JobResult], float]) -> dict[str, float]:
    ordered = sorted(map(of, fates))
    middle, late = percentile(ordered, 50), percentile(ordered, 99)
    return {"mean": mean(ordered), "p50": middle, "p99": late, "max": ordered[-1]}


def _span(run: Run) -> float:
    return max(fate.ended_at for fate in run.fates) - min(fate.job.submitted_at for fate in run.fates)


def _mean(values: Sequence[float]) -> float:
    return round(mean(values), 4)


def _sd(values: Sequence[float]) -> float:
    return round(stdev(values), 4) if len(values) > 1 else 0.0
