"""Commands about single GPUs, for admins: take one out of service, put it back to what its readings say, forget it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages
from gpusched.cli.terminal.group import for_each, group
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.client import Client
    from gpusched.protocol.rest.cluster import DeviceAction

app = group("Take GPUs out of service and back; `gpusched node show NODE` tells their ids.")
Ids = Annotated[list[int], typer.Argument(metavar="ID...", show_default=False)]


@app.command()
def quarantine(
    ctx: typer.Context, ids: Ids, note: Annotated[str, typer.Option(help="Why, for whoever looks at it next.")] = ""
) -> None:
    """Give GPUs no new jobs until they are cleared; what runs on them goes on.

    \b
    gpusched gpu quarantine 17 --note "falls off the bus under load"

    For admins. The note says why, to everybody who looks.
    """
    _act(ctx, ids, lambda client, device: client.quarantine(device, note=note))


@app.command()
def clear(ctx: typer.Context, ids: Ids) -> None:
    """Put GPUs back to what their readings say, from any bad health.

    \b
    gpusched gpu clear 17

    For admins.
    """
    _act(ctx, ids, lambda client, device: client.clear(device))


@app.command()
def retire(ctx: typer.Context, ids: Ids) -> None:
    """Forget GPUs that are gone for good; they come back by themselves if their agent names them again.

    \b
    gpusched gpu retire 17

    For admins. Readings and samples go; the ledger and incidents stay. Refused while a job holds it.
    """
    _act(ctx, ids, lambda client, device: client.retire(device))


def _act(ctx: typer.Context, ids: list[int], action: "Callable[[Client, int], DeviceAction]") -> None:
    with connect(ctx) as client:

        def act(device: int) -> None:
            answer = action(client, device)
            messages.note(answer.message or f"GPU {answer.id} is {answer.health}")

        for_each(ids, act)
