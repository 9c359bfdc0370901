"""The command `simulate`: hands a trace to the simulator, where the server is installed."""

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
    words: Annotated[list[str] | None, typer.Argument(metavar="TRACE [OPTIONS]", show_default=False)] = None,
) -> None:
    """Replay a trace of jobs, or your own history, under any policy and quota; needs no server that runs.

    \b
    gpusched simulate trace.csv
    gpusched simulate trace.csv --nodes 12 --policy shortest --plot shortest.svg

    `gpusched simulate --help` lists the options, as does docs/simulator.md.
    """
    given, checkout = words or [], Path(gpusched.__file__).parents[1]
    if not (checkout / "scheduling" / "simulator").exists():
        if {"-h", "--help"} & set(given):
            print(ctx.get_help())
            return
        raise Invalid(
            "the simulator is part of the server, which is not installed here",
            next_step="run it in a checkout, or see `gpusched submit --dry-run`",
        )
    # Not through the SDK: a trace of months is read and computed here. The child has our terminal, and our Ctrl-C.
    # -P: what lies in the present folder under one of our names is not imported.
    path = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "scheduling.simulator", *given]
    raise typer.Exit(subprocess.call(command, env={**os.environ, "PYTHONPATH": path}))
