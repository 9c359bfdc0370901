"""The commands for the secrets of a tenant. Values come from files, stdin or a prompt, never from arguments."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.flags.options import TenantOption, YesOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.access import Secret

app = group("Set, list and delete the secrets of a tenant; its jobs use them by name.")

_COLUMNS: "tuple[Column[Secret], ...]" = (
    Column("NAME", lambda s: s.name),
    Column("SET BY", lambda s: s.set_by),
    Column("SET AT", lambda s: s.set_at),
)


@app.command("set")
def set_secret(
    ctx: typer.Context,
    name: str,
    tenant: TenantOption = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Use the exact bytes of this file.", show_default=False)
    ] = None,
) -> None:
    """Set a secret. Without --file its value comes from stdin or a prompt; other users could see an argument.

    \b
    gpusched secret set wandb
    gpusched secret set wandb < token.txt
    gpusched secret set deploy-key --tenant nlp --file key.pem

    A file is stored byte for byte; a single line on stdin without its newline. A prompt does not echo. For owners.
    """
    _check(name)
    value = _value(file)
    with connect(ctx) as client:
        client.set_secret(name, value, tenant=tenant)
    messages.note(f"secret {name} is set; attempts that start from now on use it")


@app.command("list")
def list_secrets(ctx: typer.Context, tenant: TenantOption = None, form: output.OutputOption = Format.TABLE) -> None:
    """List the names of secrets, and who set them. Values cannot be read back.

    \b
    gpusched secret list
    """
    with connect(ctx) as client:
        rows = client.secrets(tenant=tenant)
    output.items(rows, _COLUMNS, form, lambda s: s.name)


@app.command()
def delete(
    ctx: typer.Context,
    name: str,
    tenant: TenantOption = None,
    yes: YesOption = False,
) -> None:
    """Delete a secret; attempts that name it and start afterwards fail.

    \b
    gpusched secret delete wandb

    Asks for confirmation without --yes. For owners of the tenant.
    """
    _check(name)
    confirm(f"Delete secret {name}? Jobs that name it fail from then on.", is_sure=yes)
    with connect(ctx) as client:
        client.delete_secret(name, tenant=tenant)
    messages.note(f"secret {name} deleted")


def _check(name: str) -> None:
    """Refuse an invalid name. Otherwise a NAME=VALUE would reach URLs, and so the logs of servers; the refusal does not
    repeat it."""
    from gpusched.client.errors import Invalid
    from gpusched.protocol.job_request import SECRET_NAME, SECRET_NAME_RULE

    if not SECRET_NAME.match(name):
        raise Invalid(
            f"invalid name of a secret: {SECRET_NAME_RULE}",
            next_step="give only the name; the value comes from stdin, --file FILE, or a prompt",
        )


def _value(file: Path | None) -> str:
    """Return a file byte for byte, or a single line on stdin without its newline, which `echo` adds."""
    from gpusched.client.errors import Invalid

    if file is None and sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True, err=True))
    try:
        text = (sys.stdin.buffer.read() if file is None else file.read_bytes()).decode()
    except UnicodeDecodeError as error:
        raise Invalid("the value is not text in UTF-8", next_step="encode it, for example with base64") from error
    except OSError as error:
        raise Invalid(f"cannot read {file}: {error.strerror or error}") from error
    return text.removesuffix("\n").removesuffix("\r") if file is None and text.count("\n") == 1 else text
