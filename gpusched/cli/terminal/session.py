"""The global options, and the client that commands create from them."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from gpusched.cli.terminal import messages

if TYPE_CHECKING:
    from gpusched.client import Client


@dataclass(frozen=True, slots=True)
class Globals:
    """The options before the command. There is no --token: arguments are visible to all users."""

    url: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


def connect(ctx: typer.Context) -> "Client":
    """Return a client from flags, environment and config file; close it with `with`."""
    from gpusched.cli.terminal.client import CommandClient
    from gpusched.client.config import read_secret

    warnings.showwarning = lambda message, *_: messages.note(f"warning: {message}")
    options: Globals = ctx.obj
    token = read_secret(options.token_file, "--token-file") if options.token_file else None
    return CommandClient(options.url, token, ca_file=options.ca_file)
