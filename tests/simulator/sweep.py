"""Sweep of `shortest` over clusters and offered loads, against overtaking without promises and against FIFO."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import mean

from scheduling.engine.model import Policy
from scheduling.simulator.runs.cluster import Cluster, never_fitting
from scheduling.simulator.runs.statistics import figures
from scheduling.simulator.runs.trace_replay import replay
from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.predictions import with_predictions

LOADS = (0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
GPUS_PER_NODE = 8
POOLED = "pooled"
# A point passes if its mean is at most MEAN_BOUND times overtaking's, and its maximum MAX_BOUND times FIFO's.
MEAN_BOUND, MAX_BOUND = 1.5, 1.15

# Mean and maximum wait in hours.
WaitHours = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Point:
    """The waits on one cluster at one offered load, in hours: the mean over the seeds, and the longest of all seeds."""

    cluster: str
    load: float
    mean_h: float
    max_h: float
    unguarded_mean_h: float
    unguarded_max_h: float
    fifo_mean_h: float
    fifo_max_h: float

    @property
    def passes(self) -> bool:
        return self.mean_h <= MEAN_BOUND * self.unguarded_mean_h and self.max_h <= MAX_BOUND * self.fifo_max_h


def clusters_of(jobs: Sequence[TraceJob]) -> dict[str, list[TraceJob]]:
    """Return the jobs of each tenant as a cluster of its own, and of all tenants in one queue as `pooled`."""
    names = sorted({job.tenant for job in jobs})
    by_name = {name: [job for job in jobs if job.tenant == name] for name in names}
    return by_name | {POOLED: [replace(job, tenant=POOLED) for job in jobs]}


def node_count(jobs: Sequence[TraceJob], load: float, seconds: float) -> int:
    """Return how many nodes bring the offered load of these jobs over `seconds` nearest to `load`, but at least as many
    as the widest job needs."""
    work = sum(job.gpus * job.run_seconds for job in jobs)
    widest = ceil(max(job.gpus for job in jobs) / GPUS_PER_NODE)
    return max(round(work / (seconds * GPUS_PER_NODE * load)), widest, 1)


def sweep(
    jobs: Sequence[TraceJob],
    seconds: float,
    seeds: int,
    measure_waits: Callable[[Sequence[TraceJob], int, str, int], WaitHours] | None = None,
) -> Iterator[Point]:
    """Yield a point for each cluster and load. Loads that round to the same number of nodes share their replays."""
    measure = measure_waits or replayed
    for name, cluster_jobs in clusters_of(jobs).items():
        points: dict[int, Point] = {}
        for load in LOADS:
            nodes = node_count(cluster_jobs, load, seconds)
            if nodes not in points:
                points[nodes] = _point(name, load, cluster_jobs, nodes, seeds, measure)
            yield replace(points[nodes], load=load)


def replayed(jobs: Sequence[TraceJob], nodes: int, policy: str, seed: int) -> WaitHours:
    """Replay the jobs under a policy with noisy predictions. Raises ValueError if a job could never start."""
    cluster, rules = Cluster(nodes, GPUS_PER_NODE), Policy(name=policy)
    impossible = never_fitting(cluster, jobs, rules)
    if impossible:
        raise ValueError(f"{len(impossible)} of {len(jobs)} jobs do not fit on {nodes} nodes")
    hours = figures([(replay(with_predictions(jobs, "noisy", seed), cluster, rules), cluster.gpu_count)]).queue_hours
    return hours["mean"], hours["max"]


def _point(
    name: str,
    load: float,
    jobs: Sequence[TraceJob],
    nodes: int,
    seeds: int,
    measure: Callable[[Sequence[TraceJob], int, str, int], WaitHours],
) -> Point:
    """Return the point of one cluster and load. FIFO ignores predictions, so one replay of it stands for all seeds."""
    guarded, unguarded = (
        [measure(jobs, nodes, policy, seed) for seed in range(1, seeds + 1)] for policy in ("shortest", "overtaking")
    )
    fifo_mean, fifo_max = measure(jobs, nodes, "fifo", 1)
    return Point(
        name,
        load,
        *(round(value, 2) for value in (*_over_seeds(guarded), *_over_seeds(unguarded), fifo_mean, fifo_max)),
    )


def _over_seeds(hours: Sequence[WaitHours]) -> WaitHours:
    return mean(entry[0] for entry in hours), max(entry[1] for entry in hours)
