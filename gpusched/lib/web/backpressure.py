"""Answers that wait for their reader: Daphne accepts all pieces, and buffers those of a slow reader in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpusched.lib.web.connections import connection

# A client that reads nothing for this time is disconnected.
TIMEOUT_SECONDS = 300.0
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


class Pace:
    """Twisted's IPushProducer, which follows whether the connection's buffer has room."""

    def __init__(self) -> None:
        self.has_room = asyncio.Event()
        self.has_room.set()

    def pauseProducing(self) -> None:  # noqa: N802
        self.has_room.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self.has_room.set()

    stopProducing = resumeProducing  # noqa: N815


@contextmanager
def backpressure(scope: Mapping[str, Any], send: Send) -> Iterator[Send]:
    """Wrap `send` for one answer, so that it returns when there is room for the next piece."""
    request = connection(scope)
    if request is None or request.channel is None:
        yield send
        return
    pace = Pace()
    request.registerProducer(pace, True)

    def release() -> None:
        if request.producer is pace and request.channel is not None:
            request.unregisterProducer()

    async def send_paced(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            release()  # the answer ends with it
            pace.has_room.set()
        await send(message)
        await asyncio.sleep(0)  # a writer that never waits must not stop the event loop
        if pace.has_room.is_set():
            return
        try:
            # Not wait_for: the end of the connection makes room, too, and it would then ignore the cancellation.
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await pace.has_room.wait()
        except TimeoutError:
            if request.channel is not None:
                request.channel.forceAbortClient()

    try:
        yield send_paced
    finally:
        release()
