"""A WebSocket whose messages touch no database themselves: they go to a hub, which asks from threads of its own. What
the hub has to say goes to the wire without a coroutine."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any

from autobahn.websocket.protocol import PreparedMessage
from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from daphne.ws_protocol import WebSocketProtocol

from gpusched.lib.servers import protocol_behind

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class HubSocket(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Of an application within `with_a_voice`."""

    async def dispatch(self, message: MutableMapping[str, Any]) -> None:
        """As in Channels, but without its hop to a thread for each message, to close database connections that were
        never opened: measured, with 200 agents and 500 pages, that is a fifth of what the web process does."""
        await getattr(self, get_handler_name(message))(message)

    def say(self, text: str) -> None:
        """Puts a message on the wire, in the event loop; nothing where the connection is gone."""
        self.scope["say"](text)


def with_a_voice(application: Callable[[Scope, Receive, Send], Awaitable[None]]) -> Any:
    """`application` with `say` in its scope. To be the outermost: it looks for Daphne behind `send`.

    Between a consumer and the wire lie five coroutines, of Channels, its middleware and Daphne, and none of them waits
    for anything: measured, with 500 pages, they are about a quarter of what a message costs."""

    async def voiced(scope: Scope, receive: Receive, send: Send) -> None:
        scope["say"] = _voice(send)
        await application(scope, receive, send)

    return voiced


def _voice(send: Send) -> Callable[[str], None]:
    protocol = protocol_behind(send)
    return partial(_write, protocol) if isinstance(protocol, WebSocketProtocol) else _Spoken(send).say


def _write(protocol: WebSocketProtocol, text: str) -> None:
    if protocol.state == protocol.STATE_OPEN:
        protocol.sendPreparedMessage(
            PreparedMessage(text.encode(), isBinary=False, applyMask=False, doNotCompress=True)
        )


class _Spoken:
    """Of a server that is not Daphne: one message after the other, as ASGI has it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        self._last = asyncio.get_running_loop().create_task(self._after(self._last, text))

    async def _after(self, before: asyncio.Task[None] | None, text: str) -> None:
        if before is not None:
            await before
        await self._send({"type": "websocket.send", "text": text})
