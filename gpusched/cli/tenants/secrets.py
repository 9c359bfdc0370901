"""Commands about the secrets of a tenant, whose values come from files, stdin or a prompt and never from arguments."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.access import Secret

app = group("Set, list and delete the secrets of a tenant, which its jobs name.")
TenantOption = Annotated[
    str | None, typer.Option("--tenant", "-t", help="Whose; needed only if you belong to several.", show_default=False)
]

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
        Path | None, typer.Option("--file", "-f", help="Take this file, to the byte.", show_default=False)
    ] = None,
) -> None:
    """Set a secret. Without --file it is read from stdin, or asked for; what stands in arguments, others can see.

    \b
    gpusched secret set wandb
    gpusched secret set wandb < token.txt
    gpusched secret set deploy-key --tenant nlp --file key.pem

    A file is taken to the byte; of a single line on stdin its end is left out. A prompt shows nothing. For owners of
    the tenant.
    """
    _check(name)
    value = _value(file)
    with connect(ctx) as client:
        client.set_secret(name, value, tenant=tenant)
    messages.note(f"secret {name} is set; attempts that start from now on get it")


@app.command("list")
def list_secrets(ctx: typer.Context, tenant: TenantOption = None, form: output.OutputOption = Format.TABLE) -> None:
    """List the names of secrets, and who set them. Nobody can read a value.

    \b
    gpusched secret list
    """
    with connect(ctx) as client:
        found = client.secrets(tenant=tenant)
    output.items(found, _COLUMNS, form, lambda s: s.name)


@app.command()
def delete(
    ctx: typer.Context,
    name: str,
    tenant: TenantOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a secret; attempts that name it and start afterwards fail.

    \b
    gpusched secret delete wandb

    Asks first; --yes does not. For owners of the tenant.
    """
    _check(name)
    confirm(f"Delete secret {name}? Jobs that name it fail from then on.", is_sure=yes)
    with connect(ctx) as client:
        client.delete_secret(name, tenant=tenant)
    messages.note(f"secret {name} deleted")


def _check(name: str) -> None:
    """Before a NAME=VALUE gets into addresses, and so into logs of servers; nor does the refusal tell it."""
    from gpusched.client.errors import Invalid
    from gpusched.protocol.job_request import SECRET_NAME, SECRET_NAME_RULE

    if not SECRET_NAME.match(name):
        raise Invalid(
            f"that is no name of a secret: {SECRET_NAME_RULE}",
            next_step="give the name alone; the value comes from stdin, --file FILE, or a prompt",
        )


def _value(file: Path | None) -> str:
    """A file to the byte; of a single line on stdin not its end, which `echo` adds."""
    from gpusched.client.errors import Invalid

    if file is None and sys.stdin.isatty():
        return str(typer.prompt("Value", hide_input=True, err=True))
    try:
        text = (sys.stdin.buffer.read() if file is None else file.read_bytes()).decode()
    except UnicodeDecodeError as error:
        raise Invalid("the value is no text in UTF-8", next_step="encode it, for example with base64") from error
    except OSError as error:
        raise Invalid(f"cannot read {file}: {error.strerror or error}") from error
    return text.removesuffix("\n").removesuffix("\r") if file is None and text.count("\n") == 1 else text
