"""The server behind an ASGI application, where it is asked for more than ASGI has words for."""

from typing import Any


def protocol_behind(send: Any) -> Any:
    """Daphne's own protocol of the connection that `send` is of; None of another server, as in tests."""
    return next(iter(getattr(send, "args", ())), None)
