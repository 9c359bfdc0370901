"""The server behind an ASGI application, where it is asked for more than ASGI has words for."""

import asyncio
from typing import Any


def protocol_behind(send: Any) -> Any:
    """Daphne's own protocol of the connection that `send` is of; None of another server, as in tests."""
    return next(iter(getattr(send, "args", ())), None)


class Pace:
    """Twisted's IPushProducer: is told whether the buffer of the connection has room."""

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        self.has_room.set()

    def pauseProducing(self) -> None:  # noqa: N802
        self.has_room.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self.has_room.set()

    stopProducing = resumeProducing  # noqa: N815
