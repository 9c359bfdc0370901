"""The commands for accounts. Passwords come from stdin or a prompt, and a generated one goes to stdout."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.flags.options import YesOption
from gpusched.cli.tenants import passwords
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.access import User

app = group("Create, list and show accounts, disable and enable them, and set passwords.")
Name = Annotated[str, typer.Argument(metavar="USER", show_default=False)]
Stdin = Annotated[bool, typer.Option("--password-stdin", help="Set this password, read from stdin (or a prompt).")]

_COLUMNS: "tuple[Column[User], ...]" = (
    Column("USER", lambda u: u.username),
    Column("ADMIN", lambda u: u.is_admin),
    Column("ACTIVE", lambda u: u.is_active),
    Column("LOGIN", lambda u: u.login),
    Column("KIND", lambda u: u.kind, is_wide=True),
    Column("EMAIL", lambda u: u.email, is_wide=True),
    Column("CREATED", lambda u: u.created_at, is_wide=True),
    # Not by `gpusched login`, which creates a token.
    Column("LAST PAGE LOGIN", lambda u: u.last_login_at or "never", is_wide=True),
    Column("TENANTS", lambda u: ",".join(f"{tenant.name}:{tenant.role}" for tenant in u.tenants)),
)


@app.command("list")
def list_users(
    ctx: typer.Context,
    disabled: Annotated[bool, typer.Option("--disabled", help="Only disabled accounts.")] = False,
    service: Annotated[bool, typer.Option("--service", help="Accounts of programs instead of people's.")] = False,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List accounts of people, with their tenants and roles (admins).

    \b
    gpusched user list
    gpusched user list --disabled -o name
    """
    with connect(ctx) as client:
        rows = client.users(active=False if disabled else None, kind="service" if service else "person")
    output.items(rows, _COLUMNS, form, lambda u: u.username)


@app.command()
def show(ctx: typer.Context, user: Name, form: output.ObjectOption = Format.TABLE) -> None:
    """Show an account (admins).

    \b
    gpusched user show ada
    """
    with connect(ctx) as client:
        account = client.user(user)
    output.one(account, form, text=_described(account), name=account.username)


@app.command()
def create(
    ctx: typer.Context,
    user: Name,
    email: Annotated[str, typer.Option(help="The person's email address.")] = "",
    admin: Annotated[bool, typer.Option("--admin", help="Create an admin account.")] = False,
    sso: Annotated[bool, typer.Option("--sso", help="Without a password, for single sign-on.")] = False,
    password_stdin: Stdin = False,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Create an account and print a one-time password, which is shown only once (admins).

    \b
    gpusched user create ada --email ada@example.com > password.txt
    gpusched user create grace --password-stdin < password.txt
    gpusched user create lin --sso

    At the first login with a one-time password, within 7 days, a new one must be set. `gpusched member add`
    sets the person's tenants and roles.
    """
    if sso and password_stdin:
        raise typer.BadParameter("has no password", param_hint="--sso")
    password = passwords.password_of_stdin("Password") if password_stdin else None
    with connect(ctx) as client:
        account = client.create_user(
            user, email=email, is_admin=admin, password=password, login="sso" if sso else "password"
        )
    messages.note(f"user {account.username} created{_of_one_time(account.one_time_password)}")
    output.one(account, form, text=account.one_time_password or "", name=account.username)


@app.command()
def edit(
    ctx: typer.Context,
    user: Name,
    email: Annotated[str | None, typer.Option(help="The person's email address.", show_default=False)] = None,
    admin: Annotated[bool | None, typer.Option("--admin/--no-admin", help="Admin or not.", show_default=False)] = None,
) -> None:
    """Change an account (admins). Omitted options stay unchanged.

    \b
    gpusched user edit ada --admin
    """
    if email is None and admin is None:
        raise typer.BadParameter("give at least one of them", param_hint="--email, --admin")
    with connect(ctx) as client:
        client.change_user(user, email=email, is_admin=admin)
    messages.note(f"user {user} changed")


@app.command()
def disable(ctx: typer.Context, user: Name, yes: YesOption = False) -> None:
    """Disable an account: its logins, sessions and tokens are refused (admins). Its jobs continue.

    \b
    gpusched user disable ada
    """
    confirm(f"Disable user {user}? The account and its tokens are refused from then on.", is_sure=yes)
    with connect(ctx) as client:
        account = client.disable_user(user)
    messages.note(f"user {user} disabled")
    for tenant in account.tenants_without_owner:
        messages.note(f"tenant {tenant} no longer has an owner who can log in")


@app.command()
def enable(ctx: typer.Context, user: Name) -> None:
    """Enable an account: its logins, sessions and tokens are accepted again (admins).

    \b
    gpusched user enable ada
    """
    with connect(ctx) as client:
        client.enable_user(user)
    messages.note(f"user {user} enabled")


@app.command()
def reset_password(
    ctx: typer.Context,
    user: Name,
    password_stdin: Stdin = False,
    keep_tokens: Annotated[bool, typer.Option("--keep-tokens", help="Do not revoke the user's tokens.")] = False,
    yes: YesOption = False,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Replace the password of another user and print a one-time password, which is shown only once (admins).

    \b
    gpusched user reset-password ada > password.txt
    gpusched user reset-password ada --keep-tokens --yes

    Ends the user's sessions and revokes the user's tokens; tokens of programs stay. At the next login, within 7 days, a
    new password must be set.
    """
    if not password_stdin:
        lost = "sessions" if keep_tokens else "sessions and tokens"
        confirm(f"Reset the password of user {user}? The user's {lost} end.", is_sure=yes)
    password = passwords.password_of_stdin("Password") if password_stdin else None
    with connect(ctx) as client:
        result = client.reset_password(user, password=password, keep_tokens=keep_tokens)
    revoked = f"{result.revoked_tokens} token{'s' * (result.revoked_tokens != 1)} revoked"
    messages.note(f"password of user {user} replaced, {revoked}{_of_one_time(result.one_time_password)}")
    output.one(result, form, text=result.one_time_password or "", name=result.username)


@app.command()
def change_password(
    ctx: typer.Context,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read two lines of stdin: the old password and the new one.")
    ] = False,
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="Revoke all your tokens, including the one in use.")
    ] = False,
) -> None:
    """Change your own password.

    \b
    gpusched user change-password
    """
    if password_stdin:
        old, new = (passwords.line_of_stdin().rstrip("\r\n") for _ in range(2))
    else:
        old = passwords.ask("Old password", instead="give --password-stdin")
        new = passwords.ask_new("New password")
    with connect(ctx) as client:
        client.change_password(old, new, revoke_tokens=revoke_tokens)
    messages.note("password changed" + ("; log in again" if revoke_tokens else ""))


def _of_one_time(password: str | None) -> str:
    return "; its one-time password is shown only once" if password else ""


def _described(user: "User") -> str:
    width = max(len(column.title) for column in _COLUMNS) + 2
    values = ((column.title.lower(), column.value(user)) for column in _COLUMNS)
    return "\n".join(f"{title:<{width}}{'' if value is None else value}".rstrip() for title, value in values)
