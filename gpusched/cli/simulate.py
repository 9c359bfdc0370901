"""The command `simulate`: hands a trace to the simulator, where the server is installed."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import gpusched
from gpusched.client.errors import Invalid


def simulate(words: Annotated[list[str], typer.Argument(metavar="TRACE [OPTIONS]", show_default=False)]) -> None:
    """Replay a trace of jobs, or your own history, under any policy and quota; needs no server that runs.

    \b
    gpusched simulate trace.csv --nodes 12
    gpusched simulate trace.csv --nodes 12 --policy shortest --plot shortest.svg

    The options are those of `manage.py simulate jobs` (docs/simulator.md).
    """
    manage = Path(gpusched.__file__).parents[1] / "manage.py"
    if not manage.exists():
        raise Invalid(
            "the simulator is part of the server, which is not installed here",
            next_step="run it in a checkout, or see `gpusched submit --dry-run`",
        )
    # Not through the SDK: a trace of months is read and computed here. The child has our terminal, and our Ctrl-C.
    raise typer.Exit(subprocess.call([sys.executable, str(manage), "simulate", "jobs", *words]))
