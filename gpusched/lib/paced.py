"""Lets what is sent piece by piece wait for who reads it: Daphne takes whatever it is given, and for somebody slow all
of it would stand in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from daphne.http_protocol import WebRequest

from gpusched.lib.servers import Pace, protocol_behind

Send = Callable[[Mapping[str, Any]], Awaitable[None]]
# Who takes nothing for so long is cut off.
TIMEOUT_SECONDS = 300.0


@contextmanager
def backpressure(send: Send) -> Iterator[Send]:
    """`send` for one answer, that returns when there is room for the next piece. It looks for Daphne behind it."""
    request = protocol_behind(send)
    if not isinstance(request, WebRequest) or request.channel is None:
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
        try:
            await asyncio.wait_for(pace.has_room.wait(), TIMEOUT_SECONDS)
        except TimeoutError:
            if request.channel is not None:
                request.channel.forceAbortClient()

    try:
        yield send_paced
    finally:
        release()
