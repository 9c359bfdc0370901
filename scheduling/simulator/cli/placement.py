"""The `simulate placement` command: its options, its table and its JSON."""

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TextIO

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from scheduling.engine.model import Policy
from scheduling.engine.placement.scorers import PLACEMENTS
from scheduling.engine.policies import POLICIES
from scheduling.simulator.charts import drawing
from scheduling.simulator.charts.fill_chart import filling
from scheduling.simulator.errors import InputError
from scheduling.simulator.runs.placement import RANDOM, Fill, fill
from scheduling.simulator.traces.openb import read_nodes, read_requests


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", type=Path, required=True, metavar="FILE", help="node list: csv or csv.gz, as openb's"
    )
    parser.add_argument("--pods", type=Path, required=True, metavar="FILE", help="requests: csv or csv.gz, as openb's")
    parser.add_argument(
        "--policy",
        default="fair",
        help=f"a placement ({', '.join((*PLACEMENTS, RANDOM))}), or a policy, for the placement that it uses",
    )
    parser.add_argument("--seeds", type=_positive, default=10, metavar="N", help="how many times, with seeds 1 to N")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw how the cluster fills up, as .svg or .png")


def run(options: dict[str, Any], stdout: TextIO) -> None:
    """Run the command. Raises InputError and OSError for files, and InputError for an unknown policy."""
    if options["plot"] is not None:
        drawing.check(options["plot"])
    placement = _placement(options["policy"])
    nodes, requests = read_nodes(options["nodes"]), read_requests(options["pods"])
    seeds = range(1, options["seeds"] + 1)
    is_quiet = not sys.stderr.isatty() or bool(os.environ.get("NO_COLOR"))
    with Progress(console=Console(stderr=True), disable=is_quiet, transient=True) as progress:
        bar = progress.add_task(placement, total=len(seeds))
        fills: list[Fill] = []
        for seed in seeds:
            moved = partial(_move, progress, bar, len(fills))
            fills.append(fill(nodes, requests, placement, seed, moved))
    result = summary(fills) | {"placement": placement}
    if options["plot"] is not None:
        drawing.write(options["plot"], *filling(f"{options['pods'].name}: {placement}", fills))
    if options["json"]:
        stdout.write(json.dumps(result) + "\n")
    else:
        _print(stdout, placement, fills)


def summary(fills: Sequence[Fill]) -> dict[str, Any]:
    """Return the means over the seeds; `sd` is the sample standard deviation, 0 for one seed."""
    percents = [filled.allocated_percent for filled in fills]
    spread = stdev(percents) if len(percents) > 1 else 0.0
    return {
        "allocation_percent": {"mean": round(mean(percents), 3), "sd": round(spread, 3)},
        "ms_per_placement": round(mean(filled.milliseconds for filled in fills), 4),
        "seeds": len(fills),
        "placed": mean(filled.placed for filled in fills),
        "refused": mean(filled.refused for filled in fills),
    }


def _move(progress: Progress, bar: TaskID, completed: int, part: float) -> None:
    progress.update(bar, completed=completed + part)


def _print(stdout: TextIO, placement: str, fills: Sequence[Fill]) -> None:
    table = Table(title=f"GPUs allocated when the demand that has arrived is the capacity: {placement}")
    for column in ("seed", "allocated %", "placed", "refused", "ms per placement"):
        table.add_column(column, justify="right")
    for seed, filled in enumerate(fills, start=1):
        ms = f"{filled.milliseconds:.3f}"
        table.add_row(str(seed), f"{filled.allocated_percent:.2f}", str(filled.placed), str(filled.refused), ms)
    means = summary(fills)
    percent = means["allocation_percent"]
    table.add_section()
    table.add_row("mean", f"{percent['mean']:.2f} ± {percent['sd']:.2f}", "", "", f"{means['ms_per_placement']:.3f}")
    console = Console(width=100, color_system=None)
    with console.capture() as text:
        console.print(table)
    stdout.write(text.get())


def _placement(name: str) -> str:
    if name in (*PLACEMENTS, RANDOM):
        return name
    if name in POLICIES:
        return Policy(name=name).placement
    names = ", ".join((*PLACEMENTS, RANDOM, *sorted(POLICIES)))
    raise InputError(f"No policy and no placement is named {name!r}; the names are {names}.")


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
