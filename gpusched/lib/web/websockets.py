"""A WebSocket whose messages touch no database themselves: they go to a hub, which asks from threads of its own. What
the hub has to say goes to the wire without a coroutine."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from autobahn.websocket.protocol import PreparedMessage
from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from daphne.ws_protocol import WebSocketProtocol
from django.db import Error

from gpusched.lib.db.outages import is_outage
from gpusched.lib.web.daphne import Pace, protocol_behind

logger = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
# So much stands in memory for who takes nothing: several times what the largest fleet is to a page.
MAX_UNSENT = 16 << 20
TRY_AGAIN_LATER = 1013


class HubSocket(AsyncWebsocketConsumer):  # type: ignore[misc]
    """Of an application within `with_a_voice`."""

    async def dispatch(self, message: MutableMapping[str, Any]) -> None:
        """As in Channels, but without its hop to a thread for each message, to close database connections that were
        never opened: measured, with 200 agents and 500 pages, that is a fifth of what the web process does."""
        await getattr(self, get_handler_name(message))(message)

    def say(self, text: str) -> None:
        """Puts a message on the wire, in the event loop; nothing where the connection is gone."""
        self.scope["say"](text)


def closed_in_outages(application: Application) -> Application:
    """Close the sockets of `application` with 1013 (try again later) when it meets an outage of the database. Daphne
    would answer the handshake with 500."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        is_accepted = False

        async def noted(message: dict[str, Any]) -> None:
            nonlocal is_accepted
            is_accepted |= message["type"] == "websocket.accept"
            await send(message)

        try:
            await application(scope, receive, noted)
        except Error as error:
            if not is_outage(error):
                raise
            logger.warning("%s is closed: the database does not answer: %s", scope["path"], error)
            if not is_accepted:  # a refused handshake cannot say why, a close code can
                await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})

    return guarded


def bounded_output(application: Application) -> Any:
    """`application` with `say` in its scope. To be the outermost: it looks for Daphne behind `send`.

    Between a consumer and the wire lie five coroutines, of Channels, its middleware and Daphne, and none of them waits
    for anything: measured, with 500 pages, they are about a quarter of what a message costs."""

    async def voiced(scope: Scope, receive: Receive, send: Send) -> None:
        scope["say"] = _voice(send)
        await application(scope, receive, send)

    return voiced


def _voice(send: Send) -> Callable[[str], None]:
    protocol = protocol_behind(send)
    return (_Written(protocol) if isinstance(protocol, WebSocketProtocol) else _Spoken(send)).say


class _Written:
    """Of Daphne. Who does not read is cut off at some point, also one that speaks: Daphne asks only the silent ones
    whether they are there."""

    def __init__(self, protocol: WebSocketProtocol) -> None:
        self._protocol = protocol
        self._pace = Pace()
        self._unsent = 0
        protocol.unregisterProducer()  # the HTTP that the connection began with
        protocol.registerProducer(self._pace, True)

    def say(self, text: str) -> None:
        protocol = self._protocol
        if protocol.state != protocol.STATE_OPEN:
            return
        message = text.encode()
        protocol.sendPreparedMessage(PreparedMessage(message, isBinary=False, applyMask=False, doNotCompress=True))
        self._unsent = 0 if self._pace.has_room.is_set() else self._unsent + len(message)
        if self._unsent > MAX_UNSENT:
            protocol.dropConnection(abort=True)


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
