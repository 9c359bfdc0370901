"""The command `logout`: revoke the token that `login` stored, and forget it."""

from typing import TYPE_CHECKING

import typer

from gpusched.cli.tenants.tokens import LOGIN_NAME
from gpusched.cli.terminal import messages

if TYPE_CHECKING:
    from gpusched.client import Client


def logout(ctx: typer.Context) -> None:
    """Revoke the token that `gpusched login` stored, and remove it from the config file.

    \b
    gpusched logout

    A token that `login` did not create, or with which others were created, stays valid.
    """
    from gpusched.client import Client, config
    from gpusched.client.errors import NotPermitted

    file = config.path()
    config.require_own(file)
    stored = config.read_file(file)
    token = stored.pop("token", None)
    if token is None:
        messages.note(f"no token is stored in {file}")
        return
    with Client(config.stored_url(stored) or None, token, ca_file=ctx.obj.ca_file) as client:
        try:
            remains = _revoke(client, token)
        except NotPermitted as error:
            if error.code != "not_authenticated":
                raise
            remains = ""  # it was revoked, or has expired
    config.write_file(file, stored)
    messages.note(f"the token is removed from {file}{remains or ' and no longer valid'}")


def _revoke(client: "Client", text: str) -> str:
    """Revoke a token. Return why it stays valid; empty if it does not."""
    tokens = client.tokens()
    prefix = text.partition(".")[0]
    own = next((token for token in tokens if token.prefix == prefix), None)
    if own is None or not own.name.startswith(LOGIN_NAME):
        return "; it stays valid, because `gpusched login` did not create it"
    others = [str(token.id) for token in tokens if token.made_by == own.id and token.revoked_at is None]
    if others:
        step = f"`gpusched token revoke {own.id}` revokes all of them"
        return f"; it stays valid, because tokens were created with it ({', '.join(others)}): {step}"
    client.revoke_token(own.id)
    return ""
