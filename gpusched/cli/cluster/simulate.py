"""The command `simulate`: pass a trace to the simulator, if the server is installed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import gpusched
from gpusched.client.errors import Invalid


def simulate(
    ctx: typer.Context,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="TRACE [OPTIONS]", show_default=False)] = None,
) -> None:
    """Replay a trace of jobs, or your own history, under any policy and quota; no running server is needed.

    \b
    gpusched simulate trace.csv
    gpusched simulate trace.csv --nodes 12 --policy shortest --plot shortest.svg

    `gpusched simulate --help` lists the options, as does docs/simulator.md.
    """
    options, checkout = arguments or [], Path(gpusched.__file__).parents[1]
    if not (checkout / "scheduling" / "simulator").exists():
        if {"-h", "--help"} & set(options):
            print(ctx.get_help())
            return
        raise Invalid(
            "the simulator is part of the server, which is not installed here",
            next_step="run it in a checkout, or see `gpusched submit --dry-run`",
        )
    # Not through the SDK: this machine reads and computes the trace of months. The child shares the terminal, and its
    # Ctrl-C. -P: files in the current folder must not shadow our modules.
    path = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "scheduling.simulator", *options]
    raise typer.Exit(subprocess.call(command, env={**os.environ, "PYTHONPATH": path}))
