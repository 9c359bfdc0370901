"""Changes to Daphne and Twisted.

- A malformed or too long head of a request is answered with a problem. Twisted closes the connection without an answer,
  or sends an empty 400.
- A too large body is refused before it is read: by its Content-Length, or at the limit if it arrives in chunks. Daphne
  reads the complete body first.
- A streamed answer waits for its reader. Daphne accepts all pieces, and buffers those of a slow reader in memory.
- Writes are sent at the end of the same turn of the event loop. Twisted first asks the kernel whether it can write:
  measured, two thirds of the cost of a write."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import msgspec
from daphne import http_protocol
from daphne.http_protocol import WebRequest
from django.conf import settings
from twisted.internet import reactor
from twisted.internet.tcp import Server
from twisted.web import http

from gpusched.lib import request_id
from gpusched.lib.api.problems import Problem, body, too_large
from gpusched.lib.limits import MAX_HEAD_BYTES

_loop: Any = reactor


def write_at_once() -> None:
    """Install immediate writes for each connection that this process accepts. Relies on private names of Twisted."""
    Server._leaves_soon = False  # type: ignore[attr-defined]
    Server.startWriting = _start  # type: ignore[method-assign]


def _start(connection: Any) -> None:
    if not connection._leaves_soon and connection not in _loop._writers:
        connection._leaves_soon = True
        asyncio.get_running_loop().call_soon(_flush, connection)


def _flush(connection: Any) -> None:
    """Write with the reactor's own error handling. Leave what is not written to the reactor."""
    connection._leaves_soon = False
    if connection.connected:
        _loop._readOrWrite(connection, False)
    if connection.connected and (connection.offset < len(connection.dataBuffer) or connection._tempDataLen):
        _loop.addWriter(connection)


# Discard further input for this time: a client whose connection is closed at once would lose the answer.
LINGER_SECONDS = 2.0


class ErrorChannel(http.HTTPChannel):
    """A connection that answers a bad head with a problem. Twisted calls these methods by its own names."""

    MAX_LENGTH = totalHeadersSize = MAX_HEAD_BYTES  # noqa: N815
    _is_refused = False

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """Refuse. Before the first line is parsed, the long line is the one with the address."""
        self._refuse(414 if vars(self).get("_HTTPChannel__first_line", True) else 431)

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802
        self._refuse(431 if self._receivedHeaderSize > self.totalHeadersSize else 400)

    def _refuse(self, status: int) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        link: Any = self
        link.dataReceived = link.lineReceived = link.rawDataReceived = lambda *_: None
        answer_and_close(link, _PROBLEMS[status])


_KIB = MAX_HEAD_BYTES >> 10


_SHORTER = f"send an address and headers of at most {_KIB} KiB together"


_PROBLEMS = {
    400: Problem(400, "bad_request", "this is no request of HTTP/1.1", next_step="correct its first line and headers"),
    414: Problem(414, "address_too_long", f"the address has more than {_KIB} KiB", next_step=_SHORTER),
    431: Problem(431, "headers_too_long", f"the headers have more than {_KIB} KiB", next_step=_SHORTER),
}


def answer_and_close(channel: Any, problem: Problem) -> None:
    """Send a problem as the last answer of a connection on which no request has begun."""
    channel.transport.write(_raw_answer(problem))
    later: Any = reactor
    later.callLater(LINGER_SECONDS, lambda: channel.transport and channel.loseConnection())


def _raw_answer(problem: Problem) -> bytes:
    named = uuid.uuid4().hex[:16]
    text = msgspec.json.encode({**body(problem), "request_id": named})
    head = (
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(text)}",
        f"{request_id.HEADER}: {named}",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + text


def limit_heads() -> None:
    """Install ErrorChannel for Daphne's connections."""
    http.HTTPChannel = ErrorChannel  # type: ignore[misc]


def protocol_behind(send: Any) -> Any:
    """Return Daphne's protocol behind `send`, or None with another server, as in tests."""
    return next(iter(getattr(send, "args", ())), None)


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


class BoundedRequest(WebRequest):  # type: ignore[misc]
    """A request with a limited body. Twisted calls these methods, in this order, by its own names."""

    _received = 0
    _is_refused = False

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        """Check the length once the headers have arrived. None: the body comes in chunks."""
        super().gotLength(length)
        if length is not None and length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        self._received += len(data)
        if self._received > settings.DATA_UPLOAD_MAX_MEMORY_SIZE and not self._is_refused:
            self._refuse()
        if not self._is_refused:
            super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:  # noqa: N802
        """Pass on the complete request. Set the length of a chunked body, or Django REST framework reads nothing."""
        if self._is_refused:
            self.channel.loseConnection()
        else:
            if self._received and self.requestHeaders.hasHeader(b"transfer-encoding"):
                self.requestHeaders.removeHeader(b"transfer-encoding")
                self.requestHeaders.setRawHeaders(b"content-length", [b"%d" % self._received])
            super().requestReceived(command, path, version)

    def _refuse(self) -> None:
        self._is_refused = True
        self.content.truncate(0)
        self.requestHeaders.removeHeader(b"expect")  # the client must not be asked to continue
        answer_and_close(self.channel, too_large())


def limit_bodies() -> None:
    """Install BoundedRequest for Daphne's requests."""
    http_protocol.WebRequest = BoundedRequest


Send = Callable[[Mapping[str, Any]], Awaitable[None]]


# A client that reads nothing for this time is disconnected.
TIMEOUT_SECONDS = 300.0


@contextmanager
def backpressure(send: Send) -> Iterator[Send]:
    """Wrap `send` for one answer, so that it returns when there is room for the next piece. Looks for Daphne behind
    it."""
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
