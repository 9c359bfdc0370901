"""The global options, and the client that a command gets from them."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from gpusched.cli.terminal import messages

if TYPE_CHECKING:
    from gpusched.client import Client


@dataclass(frozen=True, slots=True)
class Globals:
    """What stands before the command on the command line. There is no --token: arguments are visible to all users."""

    url: str | None = None
    token_file: str | None = None


def connect(ctx: typer.Context) -> "Client":
    """A client by flags, environment and config file; close it with `with`."""
    from gpusched.client import Client
    from gpusched.client.config import read_secret

    warnings.showwarning = lambda message, *_: messages.note(f"warning: {message}")
    given: Globals = ctx.obj
    token = read_secret(given.token_file, "--token-file") if given.token_file else None
    return Client(given.url, token, on_retry=_Outage())


class _Outage:
    """Tells once about each reason for trying again."""

    def __init__(self) -> None:
        self.told = ""

    def __call__(self, because: str) -> None:
        if because != self.told:
            messages.note(f"{because}; trying again")
        self.told = because
