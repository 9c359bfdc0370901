"""The commands for API tokens, and the login that stores one in the config file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.tenants import passwords
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.client import Client
    from gpusched.protocol.rest.access import IssuedServiceToken, IssuedToken, Token

app = group("Create, list and revoke API tokens.")
LOGIN_NAME = "gpusched login on"  # the start of the names of tokens that `login` creates

_COLUMNS: "tuple[Column[Token], ...]" = (
    Column("ID", lambda t: t.id),
    Column("NAME", lambda t: t.name),
    Column("PREFIX", lambda t: t.prefix),
    Column("SCOPES", lambda t: ",".join(t.scopes)),
    Column("TENANT", lambda t: t.tenant),
    Column("ACCOUNT", lambda t: getattr(t, "user", ""), is_wide=True),
    Column("EXPIRES", lambda t: t.expires_at),
    Column("LAST USED", lambda t: t.last_used_at),
    Column("REVOKED", lambda t: t.revoked_at),
    Column("CREATED", lambda t: t.created_at, is_wide=True),
)


Service = Annotated[
    str | None,
    typer.Option("--service", metavar="TENANT", help="Tokens of this tenant's programs (owners).", show_default=False),
]


@app.command("list")
def list_tokens(ctx: typer.Context, service: Service = None, form: output.OutputOption = Format.TABLE) -> None:
    """List your tokens, or those of a tenant's programs, without their secrets.

    \b
    gpusched token list
    gpusched token list --service nlp
    """
    rows: list[Token]
    with connect(ctx) as client:
        rows = [*client.service_tokens(service)] if service else client.tokens()
    output.items(rows, _COLUMNS, form, lambda t: t.id)


@app.command()
def create(
    ctx: typer.Context,
    name: str,
    scope: Annotated[list[str] | None, typer.Option(help="read, write or admin; repeatable. [read and write]")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Restrict the token to this tenant.")] = None,
    service: Service = None,
    role: Annotated[
        str | None, typer.Option(help="Role of a program: member or viewer. [as its other tokens, else member]")
    ] = None,
    days: Annotated[
        float | None, typer.Option(min=0.01, help="Days until it expires. [90; 365 for programs]", show_default=False)
    ] = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Create a token and print it. It is shown only once. A program's token outlives the account of its creator.

    \b
    gpusched token create ci --scope read --scope write --days 30 > token.txt
    gpusched token create nightly --service nlp --role viewer
    """
    if service is None and role is not None:
        raise typer.BadParameter("applies to programs: give --service, too", param_hint="--role")
    if service is not None and tenant is not None:
        raise typer.BadParameter("names the tenant already", param_hint="--service")
    token: IssuedToken | IssuedServiceToken
    with connect(ctx) as client:
        if service is None:
            token = client.create_token(name, scopes=scope or None, tenant=tenant, expires_in_days=days or 90)
        else:
            token = client.create_service_token(
                service, name, role=role, scopes=scope or None, expires_in_days=days or 365
            )
    messages.note(f"token {token.id} ({token.prefix}…) created; it is shown only once")
    output.one(token, form, text=token.token, name=token.id)


@app.command()
def revoke(
    ctx: typer.Context, token_id: Annotated[int, typer.Argument(metavar="ID", min=1)], service: Service = None
) -> None:
    """Revoke a token: the server refuses it from now on.

    \b
    gpusched token revoke 7
    gpusched token revoke 8 --service nlp
    """
    with connect(ctx) as client:
        if service is None:
            also_revoked = client.revoke_token(token_id).also_revoked
        else:
            also_revoked = client.revoke_service_token(service, token_id).also_revoked
    others = ", ".join(map(str, also_revoked))
    messages.note(f"token {token_id} revoked" + (f", and those created with it: {others}" if others else ""))


def login(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Argument(help="The server.", show_default=False)] = None,
    username: Annotated[str | None, typer.Option("--username", "-u", help="Asks for it if omitted.")] = None,
    password_stdin: Annotated[bool, typer.Option("--password-stdin", help="Read the password from stdin.")] = False,
    token_stdin: Annotated[bool, typer.Option("--token-stdin", help="Store the token from stdin instead.")] = False,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Default tenant of submits.")] = None,
) -> None:
    """Exchange a password for a token and store it in the config file.

    \b
    gpusched login https://gpusched.example
    gpusched login https://gpusched.example -u ada --password-stdin < password.txt

    After a one-time password it asks for a new one; with --password-stdin that is the second line of stdin.
    """
    from gpusched.client import Client, config

    resolved = config.resolve(url or ctx.obj.url, ca_file=ctx.obj.ca_file)
    base, ca_file = resolved.url, str(Path(resolved.ca_file).absolute()) if resolved.ca_file else ""
    file = config.path()
    config.require_own(file)  # before creating a token that could not be stored
    if token_stdin:
        token = passwords.line_of_stdin().strip()
    else:
        username = username or passwords.ask("Username", is_secret=False)
        password = passwords.line_of_stdin().rstrip("\r\n") if password_stdin else passwords.ask("Password")
        with Client(base, ca_file=ca_file) as client:
            token = _log_in(client, username, password, is_from_stdin=password_stdin)
    with Client(base, token, ca_file=ca_file) as client:
        me = client.me()
    stored = config.read_file(file)
    previous_url = config.stored_url(stored)
    dropped_tenant = stored.pop("tenant", None) if previous_url not in (None, base) else None
    if previous_url != base:
        stored.pop("ca_file", None)
    optional = {"tenant": tenant, "ca_file": ca_file}
    changed = {"url": base, "token": token, **{name: value for name, value in optional.items() if value}}
    config.write_file(file, {**stored, **changed})
    messages.note(f"logged in to {base} as {me.user}; the token is in {file}")
    if dropped_tenant and not tenant:
        messages.note(
            f"tenant {dropped_tenant} of {stored['url']} is no longer the default; --tenant sets the one here"
        )


def _log_in(client: "Client", username: str, password: str, *, is_from_stdin: bool) -> str:
    """Return a token. For a one-time password, ask for a new one or read it as the next line of stdin."""
    import platform

    from gpusched.client.errors import NotPermitted

    name = f"{LOGIN_NAME} {platform.node()}"
    try:
        return client.login(username, password, name).token
    except NotPermitted as error:
        if error.code != "password_change_required":
            raise
        if is_from_stdin:
            new = passwords.line_of_stdin().rstrip("\r\n")
            if not new:
                error.next_step = "give a new password as the second line of stdin"
                raise
        else:
            messages.note("this is a one-time password: choose a new one")
            new = passwords.ask_new("New password")
    return client.login(username, password, name, new_password=new).token
