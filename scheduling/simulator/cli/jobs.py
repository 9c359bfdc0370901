"""The `simulate jobs` command: replays the trace for each seed, and prints the table, the JSON and the plot."""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from io import StringIO
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from scheduling.engine.model import Policy
from scheduling.simulator.charts import drawing
from scheduling.simulator.charts.chart import chart
from scheduling.simulator.cli import jobs_options
from scheduling.simulator.cli.jobs_options import Part
from scheduling.simulator.runs.srtf import replay_srtf
from scheduling.simulator.runs.statistics import STATISTICS, Figures, figures, summary
from scheduling.simulator.runs.trace_replay import Run, replay
from scheduling.simulator.traces.predictions import with_predictions

# How many jobs that can never start are named; all are counted.
_MAX_NAMED = 20


def add_arguments(parser: ArgumentParser) -> None:
    jobs_options.add_arguments(parser)


def run(options: dict[str, Any], stdout: TextIO) -> None:
    """Run the command. Raises InputError for options or a trace that cannot be used, OSError for files."""
    if options["plot"] is not None:
        drawing.check(options["plot"])
    policy = jobs_options.policy_of(options)
    parts = jobs_options.parts_of(options, policy)
    if options["nodes"] is None:
        [part] = parts
        nodes = f"{part.cluster.node_count} nodes of {part.cluster.gpus_per_node} GPUs"
        sys.stderr.write(f"without --nodes: on {nodes}, of which these jobs would fill four fifths\n")
    # Only noise differs from seed to seed.
    seeds = options["seeds"] if options["predictions"] == "noisy" else 1
    by_seed: list[Figures] = []
    is_quiet = not sys.stderr.isatty() or bool(os.environ.get("NO_COLOR"))
    with Progress(console=Console(stderr=True), disable=is_quiet, transient=True) as progress:
        bar = progress.add_task(policy.name, total=seeds * sum(len(part.jobs) for part in parts))
        for seed in range(1, seeds + 1):
            runs = [(_replayed(part, policy, options, seed, progress, bar), part.cluster.gpu_count) for part in parts]
            by_seed.append(figures(runs))
            if seed == 1 and options["plot"] is not None:
                title = f"{options['file'].name}: {policy.name}, predictions {options['predictions']}"
                drawing.write(options["plot"], *chart(title, runs))
    if not options["json"]:
        stdout.write(_table(parts, policy, options, by_seed))
    else:
        never_fit = [job.name for part in parts for job in part.never_fit]
        total = summary(by_seed) | {
            "policy": policy.name,
            "never_fit": {"jobs": len(never_fit), "names": never_fit[:_MAX_NAMED]},
        }
        stdout.write(json.dumps(total) + "\n")


def _replayed(part: Part, policy: Policy, options: dict[str, Any], seed: int, progress: Progress, bar: TaskID) -> Run:
    jobs = with_predictions(part.jobs, options["predictions"], seed)
    completed_before = progress.tasks[0].completed

    def moved(completed: int) -> None:
        progress.update(bar, completed=completed_before + completed)

    charge = options["preemption_seconds"]
    if policy.name == "srtf":
        result = replay_srtf(jobs, part.cluster, policy, charge_seconds=charge, progress=moved)
    else:
        result = replay(jobs, part.cluster, policy, limits=options["limits"], charge_seconds=charge, progress=moved)
    moved(len(jobs))
    return result


def _table(parts: Sequence[Part], policy: Policy, options: dict[str, Any], by_seed: Sequence[Figures]) -> str:
    gpus = sum(part.cluster.gpu_count for part in parts)
    table = Table("hours", box=SIMPLE_HEAD)
    for name in STATISTICS:
        table.add_column(name, justify="right")
    for title, of in (("waited", _queue), ("submit to end", _jct)):
        for seed, entry in enumerate(by_seed, 1):
            row = title if len(by_seed) == 1 else f"{title}, seed {seed}"
            table.add_row(row, *[f"{of(entry)[name]:.1f}" for name in STATISTICS])
        if len(by_seed) > 1:
            means = [sum(of(entry)[name] for entry in by_seed) / len(by_seed) for name in STATISTICS]
            table.add_row(f"{title}, mean", *[f"{value:.1f}" for value in means], style="bold", end_section=True)
    text = StringIO()
    console = Console(file=text, width=100)
    title = f"{options['file'].name} on {gpus} GPUs: {policy.name}, predictions {options['predictions']}"
    console.print(title, highlight=False, markup=False)
    console.print(table)
    total = summary(by_seed)
    console.print(
        f"{total['jobs']} jobs; {total['utilisation_percent']:.1f} % of the GPU time used; "
        f"{total['preemptions_per_job']:.2f} preemptions per job",
        highlight=False,
    )
    console.print(_never_fit_text(parts), end="", highlight=False, markup=False)
    return text.getvalue()


def _never_fit_text(parts: Sequence[Part]) -> str:
    never_fit = [job for part in parts for job in part.never_fit]
    if not never_fit:
        return ""
    names = ", ".join(f"{job.name} ({job.gpus} GPUs)" for job in never_fit[:_MAX_NAMED])
    more = f" and {len(never_fit) - _MAX_NAMED} more" if len(never_fit) > _MAX_NAMED else ""
    return f"{len(never_fit)} jobs can never start on this cluster and were left out: {names}{more}\n"


def _queue(figures_of_seed: Figures) -> dict[str, float]:
    return figures_of_seed.queue_hours


def _jct(figures_of_seed: Figures) -> dict[str, float]:
    return figures_of_seed.jct_hours
