"""The commands for incidents, exemptions from the rule of idle GPUs, and the caller's own account."""

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

app = group("Exempt tenants or jobs from the rule of allocated but idle GPUs (admins).")
LimitOption = Annotated[
    int, typer.Option("--limit", "-l", min=1, max=1000, help="Maximum number of rows, newest first.")
]

_INCIDENTS: "tuple[Column[Incident], ...]" = (
    Column("SINCE", lambda incident: incident.since),
    Column("UNTIL", lambda incident: incident.until),
    Column("NODE", lambda incident: incident.node),
    Column("GPU", lambda incident: incident.gpu),
    Column("KIND", lambda incident: incident.kind),
    Column("UUID", lambda incident: incident.uuid, is_wide=True),
    Column("DEVICE", lambda incident: incident.device_id, is_wide=True),
    Column("CAUSE", lambda incident: incident.cause),
)
_EXEMPTIONS: "tuple[Column[Exemption], ...]" = (
    Column("ID", lambda exemption: exemption.id),
    Column("TENANT", lambda exemption: exemption.tenant),
    Column("JOB", lambda exemption: exemption.job_id),
    Column("BY", lambda exemption: exemption.created_by),
    Column("SINCE", lambda exemption: exemption.created_at),
    Column("NOTE", lambda exemption: exemption.note),
)


def incidents(
    ctx: typer.Context,
    is_open: Annotated[bool, typer.Option("--open", help="Only open incidents.")] = False,
    limit: LimitOption = 100,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List incidents of nodes and GPUs, newest first (admins).

    \b
    gpusched incidents --open
    gpusched incidents -o csv --limit 1000 > incidents.csv
    """
    with connect(ctx) as client:
        rows = client.incidents(limit=limit + 1, is_open=is_open)
    output.items(output.at_most(limit, rows), _INCIDENTS, form, lambda incident: incident.id)


def whoami(ctx: typer.Context, form: output.ObjectOption = Format.TABLE) -> None:
    """Print the user of the token in use, its scopes, and the user's role in each tenant.

    \b
    gpusched whoami
    gpusched whoami -o json | jq -r '.tenants[].name'
    """
    with connect(ctx) as client:
        me = client.me()
    output.one(me, form, text=_me(me), name=me.user)


def _me(me: "Me") -> str:
    first = f"{me.user}{' (admin)' if me.is_admin else ''}; scopes: {', '.join(me.scopes)}"
    return "\n".join([first, *(f"{tenant.role} of tenant {tenant.name}" for tenant in me.tenants)])


@app.command("list")
def list_exemptions(ctx: typer.Context, form: output.OutputOption = Format.TABLE) -> None:
    """List exemptions.

    \b
    gpusched exempt list
    """
    with connect(ctx) as client:
        rows = client.exemptions()
    output.items(rows, _EXEMPTIONS, form, lambda exemption: exemption.id)


@app.command()
def add(
    ctx: typer.Context,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="All its jobs.", show_default=False)] = None,
    job: Annotated[int | None, typer.Option("--job", min=1, help="This job.", show_default=False)] = None,
    note: Annotated[str, typer.Option(help="The reason, for other admins.")] = "",
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Exempt a tenant, or a job, and print the id of the exemption.

    \b
    gpusched exempt add --job 42 --note "waits for data by day"

    docs/operations.md describes the rule of allocated but idle GPUs.
    """
    if (tenant is None) == (job is None):
        raise typer.BadParameter("give exactly one of them", param_hint="--tenant or --job")
    with connect(ctx) as client:
        exemption = client.exempt(tenant=tenant, job_id=job, note=note)
    messages.note(
        f"{f'job {exemption.job_id}' if exemption.job_id else f'tenant {exemption.tenant}'} may hold idle GPUs"
    )
    output.one(exemption, form, text=str(exemption.id), name=exemption.id)


@app.command()
def end(ctx: typer.Context, ids: Annotated[list[int], typer.Argument(metavar="ID...", show_default=False)]) -> None:
    """End exemptions.

    \b
    gpusched exempt end 5
    """
    with connect(ctx) as client:

        def perform_one(exemption: int) -> None:
            client.end_exemption(exemption)
            messages.note(f"exemption {exemption} ended")

        for_each(ids, perform_one)
