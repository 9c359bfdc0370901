"""The commands for the members of a tenant and their roles."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.flags.options import YesOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.access import TenantMember

app = group("Add, list and remove the members of a tenant, and set their roles.")
Tenant = Annotated[str, typer.Argument(metavar="TENANT", show_default=False)]
User = Annotated[str, typer.Argument(metavar="USER", show_default=False)]

_COLUMNS: "tuple[Column[TenantMember], ...]" = (
    Column("USER", lambda member: member.user),
    Column("ROLE", lambda member: member.role),
    Column("KIND", lambda member: member.kind),
    Column("ACTIVE", lambda member: member.is_active),
)


@app.command("list")
def list_members(ctx: typer.Context, tenant: Tenant, form: output.OutputOption = Format.TABLE) -> None:
    """List the members of a tenant and its programs, owners first.

    \b
    gpusched member list nlp
    """
    with connect(ctx) as client:
        rows = client.members(tenant)
    output.items(rows, _COLUMNS, form, lambda member: member.user)


@app.command()
def add(
    ctx: typer.Context,
    tenant: Tenant,
    user: User,
    role: Annotated[str, typer.Option(help="viewer, member or owner.")] = "member",
) -> None:
    """Add a user to a tenant (owners). `gpusched user create` creates accounts.

    \b
    gpusched member add nlp ada
    gpusched member add nlp grace --role owner
    """
    with connect(ctx) as client:
        member = client.add_member(tenant, user, role=role)
    messages.note(f"{member.user} is {member.role} in tenant {tenant}")


@app.command()
def set_role(
    ctx: typer.Context,
    tenant: Tenant,
    user: User,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, member or owner.", show_default=False)],
) -> None:
    """Change a member's role (owners). The last owner cannot lose the role.

    \b
    gpusched member set-role nlp ada owner
    """
    with connect(ctx) as client:
        member = client.set_role(tenant, user, role)
    messages.note(f"{member.user} is {member.role} in tenant {tenant}")


@app.command()
def remove(
    ctx: typer.Context,
    tenant: Tenant,
    user: User,
    yes: YesOption = False,
) -> None:
    """Remove a member (owners). The user's jobs continue. The last owner cannot be removed.

    \b
    gpusched member remove nlp ada
    """
    confirm(f"Remove {user} from tenant {tenant}?", is_sure=yes)
    with connect(ctx) as client:
        client.remove_member(tenant, user)
    messages.note(f"{user} removed from tenant {tenant}")
