"""Commands about incidents, exemptions from the rule of idle GPUs, and the caller's own account."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import for_each, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.access import Me
    from gpusched.protocol.rest.cluster import Exemption
    from gpusched.protocol.rest.records import Incident

app = group("Spare tenants or jobs the rule of GPUs that are held but idle (admins).")
Most = Annotated[int, typer.Option("--limit", "-l", min=1, max=1000, help="At most this many, the newest first.")]

_INCIDENTS: "tuple[Column[Incident], ...]" = (
    Column("SINCE", lambda one: one.since),
    Column("UNTIL", lambda one: one.until),
    Column("NODE", lambda one: one.node),
    Column("GPU", lambda one: one.gpu),
    Column("KIND", lambda one: one.kind),
    Column("UUID", lambda one: one.uuid, is_wide=True),
    Column("DEVICE", lambda one: one.device_id, is_wide=True),
    Column("CAUSE", lambda one: one.cause),
)
_EXEMPTIONS: "tuple[Column[Exemption], ...]" = (
    Column("ID", lambda one: one.id),
    Column("TENANT", lambda one: one.tenant),
    Column("JOB", lambda one: one.job_id),
    Column("BY", lambda one: one.created_by),
    Column("SINCE", lambda one: one.created_at),
    Column("NOTE", lambda one: one.note),
)


def incidents(
    ctx: typer.Context,
    is_open: Annotated[bool, typer.Option("--open", help="Only what lasts.")] = False,
    limit: Most = 100,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List what was not well with nodes and GPUs, newest first (admins).

    \b
    gpusched incidents --open
    gpusched incidents -o csv --limit 1000 > incidents.csv
    """
    with connect(ctx) as client:
        found = client.incidents(limit=limit + 1, is_open=is_open)
    output.items(output.at_most(limit, found), _INCIDENTS, form, lambda one: one.id)


def whoami(ctx: typer.Context, form: output.OutputOption = Format.TABLE) -> None:
    """Print whose token is used, its scopes, and in which tenants it may do what.

    \b
    gpusched whoami
    gpusched whoami -o json | jq -r '.tenants[].name'
    """
    with connect(ctx) as client:
        me = client.me()
    output.one(me, form, text=_me(me), name=me.user)


def _me(me: "Me") -> str:
    first = f"{me.user}{' (admin)' if me.is_admin else ''}; scopes: {', '.join(me.scopes)}"
    return "\n".join([first, *(f"{one.role} of tenant {one.name}" for one in me.tenants)])


@app.command("list")
def list_exemptions(ctx: typer.Context, form: output.OutputOption = Format.TABLE) -> None:
    """List who may hold idle GPUs.

    \b
    gpusched exempt list
    """
    with connect(ctx) as client:
        found = client.exemptions()
    output.items(found, _EXEMPTIONS, form, lambda one: one.id)


@app.command()
def add(
    ctx: typer.Context,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="All jobs of it.", show_default=False)] = None,
    job: Annotated[int | None, typer.Option("--job", min=1, help="This job.", show_default=False)] = None,
    note: Annotated[str, typer.Option(help="Why, for whoever looks at it next.")] = "",
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Spare a tenant, or a job; prints the number of the exemption.

    \b
    gpusched exempt add --job 42 --note "waits for data by day"

    GPUs that are held but idle: docs/operations.md has the rule.
    """
    if (tenant is None) == (job is None):
        raise typer.BadParameter("give one of them", param_hint="--tenant or --job")
    with connect(ctx) as client:
        made = client.exempt(tenant=tenant, job_id=job, note=note)
    messages.note(f"{f'job {made.job_id}' if made.job_id else f'tenant {made.tenant}'} may hold idle GPUs")
    output.one(made, form, text=str(made.id), name=made.id)


@app.command()
def end(ctx: typer.Context, ids: Annotated[list[int], typer.Argument(metavar="ID...", show_default=False)]) -> None:
    """End exemptions.

    \b
    gpusched exempt end 5
    """
    with connect(ctx) as client:

        def act(exemption: int) -> None:
            client.end_exemption(exemption)
            messages.note(f"exemption {exemption} ended")

        for_each(ids, act)
