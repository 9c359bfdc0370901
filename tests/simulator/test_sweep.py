"""The sweep of `shortest` over clusters and loads: its points and their verdicts, on a small generated trace."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from scheduling.simulator.traces.jobs import TraceJob
from tests.simulator.sweep import LOADS, Point, node_count, sweep

HOUR = 3600.0
JOBS = [
    TraceJob(n, f"j{n}", n * HOUR / 4, 16 if n == 5 else 1 + 3 * (n % 2), HOUR * (1 + n % 3), tenant="ab"[n % 2])
    for n in range(60)
]


def test_node_count_brings_the_load_nearest_and_fits_the_widest_job() -> None:
    jobs = [TraceJob(n, f"j{n}", 0.0, 8, HOUR) for n in range(30)]
    assert [node_count(jobs, load, 10 * HOUR) for load in (0.5, 1.0, 1.5)] == [6, 3, 2]
    assert node_count([*jobs, replace(jobs[0], gpus=32)], 1.5, 10 * HOUR) == 4


def test_sweep_covers_each_cluster_and_all_pooled_at_each_load() -> None:
    points = list(sweep(JOBS, 15 * HOUR, 2))
    assert [(point.cluster, point.load) for point in points] == [
        (name, load) for name in ("a", "b", "pooled") for load in LOADS
    ]
    assert {*asdict(points[0])} == {
        "cluster", "load", "mean_h", "max_h", "unguarded_mean_h", "unguarded_max_h", "fifo_mean_h", "fifo_max_h"
    }  # fmt: skip
    assert max(point.fifo_mean_h for point in points) > 0


def test_sweep_takes_the_mean_and_the_worst_of_the_seeds_and_fifo_once() -> None:
    requested = []

    def measured(jobs: Sequence[TraceJob], nodes: int, policy: str, seed: int) -> tuple[float, float]:
        requested.append((len(jobs), nodes, policy, seed))
        return (float(seed), 10.0 * seed) if policy == "shortest" else (1.0, 20.0)

    [first, *_] = sweep(JOBS, 15 * HOUR, 3, measured)
    assert (first.mean_h, first.max_h, first.unguarded_mean_h, first.fifo_max_h) == (2.0, 30.0, 1.0, 20.0)
    assert len(requested) == len(set(requested))
    assert sum(policy == "fifo" for _, _, policy, _ in requested) * 7 == len(requested)


def test_point_passes_only_within_both_bounds() -> None:
    point = Point("a", 0.7, 1.5, 114.0, 1.0, 500.0, 50.0, 100.0)
    assert point.passes
    assert not replace(point, mean_h=1.51).passes
    assert not replace(point, max_h=115.1).passes
