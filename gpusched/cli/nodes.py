"""Commands about nodes: the list, and for admins cordon, drain, uncordon and the token with which a node joins."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli import output, say
from gpusched.cli.commands import for_each, group
from gpusched.cli.output import Column, Format, age
from gpusched.cli.session import connect

if TYPE_CHECKING:
    from gpusched.client import Client
    from gpusched.client.inventory import Node, NodeAction

app = group("Look after nodes: cordon, drain, uncordon, let new ones join.")
Names = Annotated[list[str], typer.Argument(metavar="NODE...", show_default=False)]

_COLUMNS: "tuple[Column[Node], ...]" = (
    Column("NODE", lambda node: node.name),
    Column("STATE", lambda node: node.state, is_state=True),
    Column("INTENT", lambda node: node.intent, is_state=True),
    Column(
        "FREE",
        lambda node: sum(d.held == "free" and d.health in ("ok", "hot") and not d.is_slowed for d in node.devices),
    ),
    Column("GPUS", lambda node: len(node.devices)),
    Column("MODEL", lambda node: ",".join(sorted({d.model for d in node.devices}))),
    Column("CPU FREE", lambda node: f"{node.cpu_cores_free:g}/{node.cpu_cores:g}"),
    Column("MEMORY FREE", lambda node: f"{node.memory_mb_free}/{node.memory_mb} MiB"),
    Column("SEEN", lambda node: age(node.last_seen_at)),
    Column("PRETEND", lambda node: node.pretend, is_wide=True),
    Column("AGENT", lambda node: node.agent_version, is_wide=True),
    Column("DRIVER", lambda node: node.driver_version, is_wide=True),
    Column("LABELS", lambda node: ",".join(f"{k}={v}" for k, v in sorted(node.labels.items())), is_wide=True),
    Column("TROUBLE", lambda node: _trouble(node)),
)


def nodes(ctx: typer.Context, form: output.OutputOption = Format.TABLE) -> None:
    """List nodes, their GPUs and what is free.

    \b
    gpusched nodes
    gpusched nodes -o json | jq '.[].devices[] | {uuid, health, held}'
    """
    with connect(ctx) as client:
        found = client.nodes()
    output.items(found, _COLUMNS, form, lambda node: node.name)


@app.command()
def cordon(ctx: typer.Context, names: Names) -> None:
    """Start nothing new on nodes; what runs goes on.

    \b
    gpusched node cordon gpu-3
    """
    _act(ctx, names, lambda client, name: client.cordon(name))


@app.command()
def drain(ctx: typer.Context, names: Names) -> None:
    """Start nothing new on nodes until what runs there has ended.

    \b
    gpusched node drain gpu-3
    """
    _act(ctx, names, lambda client, name: client.drain(name))


@app.command()
def uncordon(ctx: typer.Context, names: Names) -> None:
    """Let nodes take jobs again.

    \b
    gpusched node uncordon gpu-3
    """
    _act(ctx, names, lambda client, name: client.uncordon(name))


@app.command("join-token")
def join_token(
    ctx: typer.Context,
    hours: Annotated[float, typer.Option(min=0.1, help="How long it can be used.")] = 24,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Print a token with which a new node joins; stderr says what to type there.

    \b
    gpusched node join-token
    gpusched node join-token -o json | jq -r .command
    """
    with connect(ctx) as client:
        made = client.join_token(expires_in_hours=hours)
    if form is Format.TABLE and made.command:
        say.note(f"on the new node: {made.command}")
    output.one(made, form, text=made.token, name=made.token)


def _act(ctx: typer.Context, names: list[str], action: "Callable[[Client, str], NodeAction]") -> None:
    with connect(ctx) as client:

        def act(name: str) -> None:
            answer = action(client, name)
            say.note(answer.message or f"node {answer.node} is {answer.status}")

        for_each(names, act)


def _trouble(node: "Node") -> str:
    return ", ".join(
        f"GPU {d.index} {d.health}" + (f" ({d.health_note})" if d.health_note else "")
        for d in node.devices
        if d.health not in ("ok", "")
    )
