"""WebSockets that pass their messages to a hub, which queries the database in its own threads. Messages of the hub are
sent without a coroutine."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from autobahn.websocket.protocol import PreparedMessage
from channels.consumer import get_handler_name
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.conf import settings
from django.db import Error
from django.utils.http import is_same_domain

from gpusched.lib.db.outages import is_temporary, summary
from gpusched.lib.web.backpressure import Pace
from gpusched.lib.web.connections import connection

logger = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
# Maximum unsent bytes per connection before it is closed: several times the largest update of a page.
MAX_UNSENT = 16 << 20
TRY_AGAIN_LATER = 1013
_TCP_NOTSENT_LOWAT = 25  # the socket module does not name it


class HubSocket(AsyncWebsocketConsumer):  # type: ignore[misc]
    """A consumer for an application inside `bounded_output`."""

    async def dispatch(self, message: MutableMapping[str, Any]) -> None:
        """Handle a message without the hop to a thread that Channels makes to close database connections. Measured
        with 200 agents and 500 pages: that hop takes a fifth of the CPU time of the web process."""
        await getattr(self, get_handler_name(message))(message)

    def send_text(self, text: str) -> None:
        """Send a message, in the event loop. Do nothing if the connection is closed."""
        self.scope["output"].send_text(text)


def of_own_pages(application: Application) -> Any:
    """Refuse sockets that pages of other origins open with the cookie of the session. As for forms, another port is
    another origin: `gpusched forward` shows the pages of jobs there. Channels compares only the names of hosts."""
    checked: Application = AllowedHostsOriginValidator(application)
    refused: Application = WebsocketDenier()

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        is_own = _is_own(headers.get(b"origin", ""), headers.get(b"host", ""))
        await (checked if is_own else refused)(scope, receive, send)

    return run


def _is_own(origin: str, host: str) -> bool:
    """Return whether an origin is that of this server, by the rules of Django's CSRF protection."""
    scheme, _, name = origin.partition("://")
    trusted = (pattern.partition("://")[::2] for pattern in settings.CSRF_TRUSTED_ORIGINS)
    return name == host or any(scheme == also and is_same_domain(name, names.lstrip("*")) for also, names in trusted)


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
            if not is_temporary(error):
                raise
            logger.warning("%s is closed: %s", scope["path"], summary(error))
            if not is_accepted:  # a rejected handshake carries no reason, a close code does
                await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER})

    return guarded


def bounded_output(application: Application) -> Any:
    """Wrap `application`, and put its Output into its scope.

    Between a consumer and the socket are five coroutines of Channels, its middleware and Daphne, and none of them
    waits. Measured with 500 pages: they take about a quarter of the cost of a message."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        protocol = connection(scope)
        scope["output"] = _AsgiOutput(send) if protocol is None else _DaphneOutput(protocol)
        await application(scope, receive, send)

    return wrapped


class Output(Protocol):
    """The sending side of a WebSocket in the event loop, with what a stream of bytes needs."""

    def send_text(self, text: str) -> None: ...

    def send_bytes(self, data: bytes) -> None:
        """Send a binary message. Wait for `drained` before the next one."""

    async def drained(self) -> None:
        """Wait until the connection has room, or is closed."""

    def limit_messages(self, max_bytes: int) -> None:
        """Close the connection when the client sends a larger message."""

    def limit_unsent(self, max_bytes: int) -> None:
        """Let the kernel keep at most so much unsent data, behind which a text message would wait."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class _DaphneOutput:
    """Output through Daphne's connection. It drops clients that do not read, also those that send: Daphne pings only
    silent ones.

    It writes frames itself, because autobahn formats a coloured log line for each message, even without logging: 17 of
    18 microseconds per message."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._pace = Pace()
        self._unsent = 0
        protocol.unregisterProducer()  # the HTTP that the connection began with
        protocol.registerProducer(self._pace, True)

    def send_text(self, text: str) -> None:
        protocol = self._protocol
        if protocol.state != protocol.STATE_OPEN:
            return
        message = text.encode()
        self._write(message, is_binary=False)
        self._unsent = 0 if self._pace.has_room.is_set() else self._unsent + len(message)
        if self._unsent > MAX_UNSENT:
            protocol.dropConnection(abort=True)

    def send_bytes(self, data: bytes) -> None:
        if self._protocol.state == self._protocol.STATE_OPEN:
            self._write(data, is_binary=True)

    def _write(self, message: bytes, *, is_binary: bool) -> None:
        frame = PreparedMessage(message, isBinary=is_binary, applyMask=False, doNotCompress=True)
        self._protocol.transport.write(frame.payloadHybi)

    async def drained(self) -> None:
        await self._pace.has_room.wait()

    def limit_messages(self, max_bytes: int) -> None:
        self._protocol.maxMessagePayloadSize = self._protocol.maxFramePayloadSize = max_bytes

    def limit_unsent(self, max_bytes: int) -> None:
        self._protocol.transport.getHandle().setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, max_bytes)

    def pause_reading(self) -> None:
        self._protocol.transport.pauseProducing()

    def resume_reading(self) -> None:
        self._protocol.transport.resumeProducing()


class _AsgiOutput:
    """Output through another ASGI server: one message after the other."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last: asyncio.Task[None] | None = None

    def send_text(self, text: str) -> None:
        self._queue({"type": "websocket.send", "text": text})

    def send_bytes(self, data: bytes) -> None:
        self._queue({"type": "websocket.send", "bytes": data})

    async def drained(self) -> None:
        if self._last is not None:
            await self._last

    def limit_messages(self, max_bytes: int) -> None:
        """Leave it to the server's own setting."""

    def limit_unsent(self, max_bytes: int) -> None:
        """Leave it to the server's own setting."""

    def pause_reading(self) -> None:
        """Such a server reads only as its application receives."""

    def resume_reading(self) -> None: ...

    def _queue(self, message: dict[str, Any]) -> None:
        self._last = asyncio.get_running_loop().create_task(self._after(self._last, message))

    async def _after(self, previous: asyncio.Task[None] | None, message: dict[str, Any]) -> None:
        if previous is not None:
            await previous
        await self._send(message)
