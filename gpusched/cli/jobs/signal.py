"""The command `signal`: send a signal to the program of a running job."""

from typing import Annotated

import typer

from gpusched.cli.terminal import messages
from gpusched.cli.terminal.session import connect
from gpusched.protocol.signals import NAMES


def signal(
    ctx: typer.Context,
    job_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    name: Annotated[str, typer.Argument(metavar="SIGNAL", show_default=False)],
) -> None:
    """Send HUP, INT, QUIT, USR1 or USR2 to the program of a running job.

    \b
    gpusched signal 42 USR1

    The first process of each rank gets it; in a container, the first process there. A script passes it on with trap, or
    by exec of its program; a program that does not handle it ends. To end a job with its grace: gpusched cancel.
    """
    requested = next((allowed for allowed in NAMES if allowed == name.upper().removeprefix("SIG")), None)
    if requested is None:
        raise typer.BadParameter(f"{name!r} must be one of {', '.join(NAMES)}; to end a job: gpusched cancel")
    with connect(ctx) as client:
        job = client.send_signal(job_id, requested)
    messages.note(job.message or f"job {job.id} gets {requested}")
