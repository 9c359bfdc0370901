"""The commands for single GPUs, for admins: take one out of service, restore it, retire it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages
from gpusched.cli.terminal.group import for_each, group
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.client import Client
    from gpusched.protocol.rest.cluster import DeviceAction

app = group("Take GPUs out of service and back; `gpusched node show NODE` lists their ids.")
Ids = Annotated[list[int], typer.Argument(metavar="ID...", show_default=False)]


@app.command()
def quarantine(
    ctx: typer.Context, ids: Ids, note: Annotated[str, typer.Option(help="The reason, for other admins.")] = ""
) -> None:
    """Give GPUs no new jobs until they are cleared; running jobs continue.

    \b
    gpusched gpu quarantine 17 --note "falls off the bus under load"

    For admins. Everyone who can see the GPU can read the note.
    """
    _perform(ctx, ids, lambda client, device: client.quarantine(device, note=note))


@app.command()
def clear(ctx: typer.Context, ids: Ids) -> None:
    """Clear the health of GPUs: their readings decide it again.

    \b
    gpusched gpu clear 17

    For admins.
    """
    _perform(ctx, ids, lambda client, device: client.clear(device))


@app.command()
def retire(ctx: typer.Context, ids: Ids) -> None:
    """Retire GPUs that are gone for good; they return automatically if their agent reports them again.

    \b
    gpusched gpu retire 17

    For admins. Their readings and samples are deleted; the ledger and incidents stay. Refused while a job uses it.
    """
    _perform(ctx, ids, lambda client, device: client.retire(device))


def _perform(ctx: typer.Context, ids: list[int], action: "Callable[[Client, int], DeviceAction]") -> None:
    with connect(ctx) as client:

        def perform_one(device: int) -> None:
            answer = action(client, device)
            messages.note(answer.message or f"GPU {answer.id} is {answer.health}")

        for_each(ids, perform_one)
