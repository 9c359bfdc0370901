"""The command `simulate`: pass a trace to the simulator."""

import os
import subprocess
import sys
from typing import Annotated

import typer

from gpusched.installation import SERVER_ROOT


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
    # Not through the SDK: this machine reads and computes the trace of months. The child shares the terminal, and its
    # Ctrl-C. -P: files in the current folder must not shadow our modules.
    path = os.pathsep.join(filter(None, [str(SERVER_ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "scheduling.simulator", *(arguments or [])]
    raise typer.Exit(subprocess.call(command, env={**os.environ, "PYTHONPATH": path}))
