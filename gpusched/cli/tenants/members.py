"""Commands about the members of a tenant and their roles."""

from typing import TYPE_CHECKING, Annotated

import typer

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
    Column("USER", lambda m: m.user),
    Column("ROLE", lambda m: m.role),
    Column("KIND", lambda m: m.kind),
    Column("ACTIVE", lambda m: m.is_active),
)


@app.command("list")
def list_members(ctx: typer.Context, tenant: Tenant, form: output.OutputOption = Format.TABLE) -> None:
    """List the members of a tenant and its programs, owners first.

    \b
    gpusched member list nlp
    """
    with connect(ctx) as client:
        found = client.members(tenant)
    output.items(found, _COLUMNS, form, lambda m: m.user)


@app.command()
def add(
    ctx: typer.Context,
    tenant: Tenant,
    user: User,
    role: Annotated[str, typer.Option(help="viewer, member or owner.")] = "member",
) -> None:
    """Make a user a member of a tenant (owners). `gpusched user create` makes accounts.

    \b
    gpusched member add nlp ada
    gpusched member add nlp grace --role owner
    """
    with connect(ctx) as client:
        made = client.add_member(tenant, user, role=role)
    messages.note(f"{made.user} is {made.role} in tenant {tenant}")


@app.command()
def set_role(
    ctx: typer.Context,
    tenant: Tenant,
    user: User,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, member or owner.", show_default=False)],
) -> None:
    """Give a member another role (owners). The last owner stays one.

    \b
    gpusched member set-role nlp ada owner
    """
    with connect(ctx) as client:
        made = client.set_role(tenant, user, role)
    messages.note(f"{made.user} is {made.role} in tenant {tenant}")


@app.command()
def remove(
    ctx: typer.Context,
    tenant: Tenant,
    user: User,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End a membership (owners). The user's jobs go on. The last owner stays.

    \b
    gpusched member remove nlp ada
    """
    confirm(f"Remove {user} from tenant {tenant}?", is_sure=yes)
    with connect(ctx) as client:
        client.remove_member(tenant, user)
    messages.note(f"{user} removed from tenant {tenant}")
