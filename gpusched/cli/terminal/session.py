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
    from gpusched.client import Client
    from gpusched.client.config import read_secret

    warnings.showwarning = lambda message, *_: messages.note(f"warning: {message}")
    options: Globals = ctx.obj
    token = read_secret(options.token_file, "--token-file") if options.token_file else None
    return Client(options.url, token, ca_file=options.ca_file, on_retry=_Outage())


class _Outage:
    """Prints each new reason for a retry once."""

    def __init__(self) -> None:
        self._noted = ""

    def __call__(self, because: str) -> None:
        if because != self._noted:
            messages.note(f"{because}; trying again")
        self._noted = because
