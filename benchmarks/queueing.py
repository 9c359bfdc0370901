"""Waiting times of jobs on real traces: Muri's under SRTF, then contended Philly under live and reference policies.

Needs ../shared/traces. Each Philly row takes about a minute and a half per seed, so `--seeds 5` takes a while.
`--sweep` replays each cluster of a Philly trace, and all pooled, at six offered loads instead: about an hour.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import NoReturn

from scheduling.engine.model import Policy
from scheduling.simulator.runs.cluster import Cluster
from scheduling.simulator.runs.srtf import replay_srtf
from scheduling.simulator.runs.statistics import Figures, figures, summary
from scheduling.simulator.runs.trace_replay import replay
from scheduling.simulator.traces.formats import read_trace
from scheduling.simulator.traces.jobs import TraceJob
from scheduling.simulator.traces.predictions import with_predictions
from tests.simulator.sweep import sweep

TRACES = Path(__file__).parents[2] / "shared" / "traces"
TUNING = TRACES / "philly" / "philly_tuning.csv.gz"
# Mean completion time in seconds, as published.
MURI = {"trace3": 193_082, "trace4": 581_983}
# Virtual cluster -> nodes, cut so that the offered load of October and November 2017 is 0.8 to 1.0.
PHILLY = {"6c71a0": 7, "b436b2": 5, "103959": 3}
OCTOBER, DECEMBER = 1_506_816_000.0, 1_512_086_400.0
GOAL_MEAN_HOURS, GOAL_MAX_HOURS = 10.0, 550.0


@dataclass(frozen=True)
class Row:
    title: str
    policy: Policy
    predictions: str = "none"
    limits: str = "given"
    is_goal: bool = False


ROWS = (
    Row("shortest, noisy (goal)", Policy(name="shortest"), "noisy", is_goal=True),
    Row("shortest, oracle", Policy(name="shortest"), "oracle"),
    Row("overtaking, noisy", Policy(name="overtaking"), "noisy"),
    Row("overtaking, oracle", Policy(name="overtaking"), "oracle"),
    Row("overtaking, no predictions", Policy(name="overtaking")),
    Row("fair", Policy()),
    Row("fair, limits oracle (EASY)", Policy(aging_points_per_minute=0.0), limits="oracle"),
    Row("fifo", Policy(name="fifo")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--seeds", type=int, help="replays with other noise: 1, and 3 of a sweep, where it is left out")
    parser.add_argument("--sweep", action="store_true", help="each cluster of the trace, and all pooled, at six loads")
    parser.add_argument("--trace", type=Path, default=TUNING, help="of a sweep: another trace in Philly's format")
    parser.add_argument("--goal-only", action="store_true", help="without the rows for comparison")
    parser.add_argument("--placement", default=Policy().placement, help="best_fit gives the references of others")
    options = parser.parse_args()
    if not TRACES.is_dir():
        sys.exit("The traces are not here (../shared/traces).")
    if options.sweep:
        _sweep(options.trace, options.seeds or 3, options.json)
    figures_by_title: dict[str, object] = {}
    missed = [name for name, goal in MURI.items() if not _muri(name, goal, figures_by_title)]
    for row in ROWS[:1] if options.goal_only else ROWS:
        if not _philly(row, options.seeds or 1, options.placement, figures_by_title):
            missed.append(row.title)
    if options.json:
        print(json.dumps(figures_by_title))
    sys.exit(f"Missed: {', '.join(missed)}." if missed else 0)


def _sweep(trace: Path, seeds: int, as_json: bool) -> NoReturn:
    jobs = [job for job in read_trace(trace, "philly") if OCTOBER <= job.submitted_at < DECEMBER]
    points = []
    for point in sweep(jobs, DECEMBER - OCTOBER, seeds):
        points.append(point)
        # With --json, standard output carries the one document.
        print(f"{point}{'' if point.passes else '  MISSED'}", flush=True, file=sys.stderr if as_json else sys.stdout)
    failed = sum(not point.passes for point in points)
    if as_json:
        print(json.dumps({"points": [asdict(point) for point in points], "failed": failed}))
    sys.exit(f"Missed: {failed} of {len(points)} points." if failed else 0)


def _muri(name: str, goal: int, figures_by_title: dict[str, object]) -> bool:
    jobs = with_predictions(read_trace(TRACES / "muri_philly" / f"{name}.csv.gz", "muri"), "oracle", 1)
    run = replay_srtf(jobs, Cluster(8, 8), Policy(name="srtf"))
    seconds = mean(result.completion_seconds for result in run.results)
    figures_by_title[name] = {"jct_seconds": round(seconds), "published": goal}
    print(
        f"{name}: {len(jobs)} jobs, mean completion {seconds:,.0f} s, {100 * (seconds / goal - 1):+.1f} %", flush=True
    )
    return abs(seconds / goal - 1) <= 0.1


def _philly(row: Row, seeds: int, placement: str, figures_by_title: dict[str, object]) -> bool:
    trace = read_trace(TUNING, "philly")
    jobs = [job for job in trace if OCTOBER <= job.submitted_at < DECEMBER and job.tenant in PHILLY]
    policy = replace(row.policy, placement=placement)
    count = seeds if row.predictions == "noisy" else 1
    runs = [_pooled(jobs, policy, row, seed) for seed in range(1, count + 1)]
    figures_by_title[row.title] = summary(runs)
    for seed, run in enumerate(runs, 1):
        hours = "  ".join(f"{name} {value:6.1f}" for name, value in run.queue_hours.items())
        print(f"{row.title:34} seed {seed}: {run.jobs} jobs, waited {hours} h", flush=True)
    is_met = all(
        run.queue_hours["mean"] <= GOAL_MEAN_HOURS and run.queue_hours["max"] <= GOAL_MAX_HOURS for run in runs
    )
    return is_met or not row.is_goal


def _pooled(jobs: Sequence[TraceJob], policy: Policy, row: Row, seed: int) -> Figures:
    parts = []
    for tenant, nodes in PHILLY.items():
        tenant_jobs = with_predictions([job for job in jobs if job.tenant == tenant], row.predictions, seed)
        parts.append((replay(tenant_jobs, Cluster(nodes, 8), policy, limits=row.limits), nodes * 8))
    return figures(parts)


if __name__ == "__main__":
    main()
