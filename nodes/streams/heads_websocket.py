"""`/ws/heads/NODE`: another head's stream to an agent that is connected here. Each binary message is a frame."""

import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from gpusched.lib.web.websockets import Output, Receive, Scope, Send
from gpusched.protocol.streams import Violation
from nodes.streams import heads
from nodes.streams.opening import peers
from nodes.streams.peers import MAX_MESSAGE_BYTES

logger = logging.getLogger(__name__)


class _Asker:
    """The head that asks, as a pipe."""

    def __init__(self, receive: Receive, output: Output) -> None:
        self._receive, self._output = receive, output
        self.has_left = self._is_closed = False

    def send(self, message: bytes) -> None:
        if not self._is_closed:
            self._output.send_bytes(message)

    async def messages(self) -> AsyncIterator[bytes]:
        while not self.has_left:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                self.has_left = True
                return
            if (data := message.get("bytes")) is None:
                raise Violation("a text message")
            yield data

    def close(self) -> None:
        self._is_closed = True


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer another head. One without the secret key gets 403."""
    await receive()  # websocket.connect
    node_id = scope["url_route"]["kwargs"]["node_id"]
    header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    if not heads.is_signed(header.decode("latin-1"), node_id):
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept"})
    output: Output = scope["output"]
    output.limit_messages(MAX_MESSAGE_BYTES)
    asker = _Asker(receive, output)
    try:
        await peers.answer_head(node_id, asker)
    except (OSError, Violation) as error:
        logger.warning("the stream of another head broke: %s", error)
    if not asker.has_left:
        with suppress(OSError):
            await send({"type": "websocket.close", "code": 1000})


head_socket: Any = _serve
