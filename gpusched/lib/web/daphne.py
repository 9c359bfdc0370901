"""The web server: Daphne with limits on requests, with answers that wait for their reader, and with cheap writes.

Everything that depends on the inside of Daphne and Twisted stands here: subclasses that Daphne's own hooks install.
tests/lib/test_daphne.py fails when a name changes on which they rely. Figures are the loss of submits a second over
eight connections without the part, medians of 15 alternating turns (416/s with all)."""

# mypy: allow-untyped-calls

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from autobahn.util import encode_truncate
from daphne import cli, server  # before Twisted's reactor, which it chooses
from daphne.http_protocol import HTTPFactory, WebRequest
from daphne.ws_protocol import WebSocketProtocol
from django.conf import settings
from twisted.internet import reactor, tcp
from twisted.internet.defer import Deferred
from twisted.web.http import HTTPChannel

from gpusched.lib import request_id
from gpusched.lib.api.problems import Problem, body, too_large
from gpusched.lib.limits import MAX_HEAD_BYTES
from gpusched.lib.web.connections import CONNECTION

# Discard further input for this time: a client whose connection is closed at once would lose the answer.
LINGER_SECONDS = 2.0
# A process that ends finishes the requests that it has read, for at most this time.
FINISH_SECONDS = 5.0
# It ends when none began for this time, in which the event loop sends the last answers.
_QUIET_SECONDS = 0.05
# A close frame has room for the code and so many bytes of a reason (RFC 6455).
_MAX_REASON_BYTES = 123
_KIB = MAX_HEAD_BYTES >> 10
_SHORTER = f"send an address and headers of at most {_KIB} KiB together"
_PROBLEMS = {
    400: Problem(400, "bad_request", "this is no request of HTTP/1.1", next_step="correct its first line and headers"),
    414: Problem(414, "address_too_long", f"the address has more than {_KIB} KiB", next_step=_SHORTER),
    431: Problem(431, "headers_too_long", f"the headers have more than {_KIB} KiB", next_step=_SHORTER),
}


class Connection(tcp.Server):
    """A TCP connection that sends what is written at the end of the same turn of the event loop. Twisted first asks the
    kernel whether it can write. Without: 7 %."""

    _is_flush_due = _is_empty = False

    def startWriting(self) -> None:  # noqa: N802
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def writeSequence(self, iovec: Iterable[bytes]) -> None:  # noqa: N802
        """Write the pieces as one: the head of an answer has about 60, and Twisted checks the type of each."""
        self.write(b"".join(iovec))

    def stopWriting(self) -> None:  # noqa: N802
        self._is_empty = True
        super().stopWriting()

    def _flush(self) -> None:
        """Leave to the reactor what the kernel does not take, errors, and the end of a connection."""
        self._is_flush_due = self._is_empty = False
        if self.connected and (self.disconnecting or self.doWrite() is not None or not self._is_empty):
            super().startWriting()


class ErrorChannel(HTTPChannel):
    """A connection that answers a bad head with a problem (A55). Twisted closes it without an answer, or sends an empty
    400."""

    MAX_LENGTH = totalHeadersSize = MAX_HEAD_BYTES  # noqa: N815
    path = ""  # of the latest request, without its query
    _head_size = 0
    _is_refused = False

    def lineReceived(self, line: bytes) -> None:  # noqa: N802
        if not self._head_size:
            self.path = line.partition(b" ")[2].partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
        self._head_size += len(line)
        super().lineReceived(line)

    def allHeadersReceived(self) -> None:  # noqa: N802
        self._head_size = 0
        super().allHeadersReceived()

    def checkPersistence(self, request: Any, version: bytes) -> bool:  # noqa: N802
        """Let the client send no further request on this connection once the process ends."""
        if not self.factory.server.is_stopping:
            return bool(super().checkPersistence(request, version))
        request.responseHeaders.setRawHeaders(b"Connection", [b"close"])
        return False

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """Refuse. The first line is the one with the address."""
        self._refuse(431 if self._head_size else 414)

    def _respondToBadRequestAndDisconnect(self) -> None:  # noqa: N802
        """Override the only private name of a library: Twisted has no other hook for malformed heads."""
        self._refuse(431 if self._head_size > self.totalHeadersSize else 400)

    def _refuse(self, status: int) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        link: Any = self
        link.dataReceived = link.lineReceived = link.rawDataReceived = lambda *_: None
        answer_and_close(link, _PROBLEMS[status])


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


class BoundedRequest(WebRequest):  # type: ignore[misc]
    """A request with a limited body: endless ones are refused by their Content-Length, or at the limit if they arrive
    in chunks. Daphne reads the complete body first. Twisted calls these methods in this order."""

    _received = 0
    _is_refused = False
    _has_begun = False  # the answer

    def __init__(self, *args: Any) -> None:
        """Let Twisted parse no form: Django does, and parsing the Content-Type alone takes long. Without: 10 %."""
        super().__init__(*args, parsePOSTFormSubmission=False)

    def gotLength(self, length: int | None) -> None:  # noqa: N802
        """Check the length once the headers have arrived. None: the body comes in chunks."""
        super().gotLength(length)
        if length is not None and length > self._max_bytes():
            self._refuse()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802
        self._received += len(data)
        if self._received > self._max_bytes() and not self._is_refused:
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

    def handle_reply(self, message: Mapping[str, Any]) -> None:
        """Send no body for HEAD. Daphne leaves out the first piece alone (64 KiB from Django), and the client would
        read the others as its next answer."""
        if self.method == b"HEAD" and message.get("body"):
            message = {**message, "body": b""}
        self._has_begun = True
        super().handle_reply(message)

    def handle_exception(self, exception: BaseException) -> None:
        """Close the connection if the application fails after the beginning of its answer. Daphne's error page raises
        then: the client would wait for the rest, and Daphne would check its connections no more, and keep all of them
        in memory."""
        if not self._has_begun:
            super().handle_exception(exception)
        elif not self.finished and self.channel is not None:
            self.channel.forceAbortClient()

    def _max_bytes(self) -> int:
        """Return the limit of the body. Twisted sets the address of a request only once its body is complete."""
        return int(settings.UPLOAD_MAX_BYTES.get(self.channel.path, settings.DATA_UPLOAD_MAX_MEMORY_SIZE))

    def _refuse(self) -> None:
        self._is_refused = True
        self.content.truncate(0)
        self.requestHeaders.removeHeader(b"expect")  # the client must not be asked to continue
        answer_and_close(self.channel, too_large(self._max_bytes()))


class Factory(HTTPFactory):  # type: ignore[misc]
    """Create connections that limit requests, and format no lines of Twisted's access log, which Daphne discards.
    Without: 10 %."""

    protocol = ErrorChannel

    def buildProtocol(self, address: Any) -> Any:  # noqa: N802
        channel = super().buildProtocol(address)
        channel.requestFactory = BoundedRequest
        return channel

    def log(self, request: WebRequest) -> None: ...


class WebServer(server.Server):  # type: ignore[misc]
    """Daphne's server with the connections of this module. Applications find theirs in their scope (connections.py).
    `on_start` is called once the event loop runs. `is_busy`: whether requests are in progress, or have
    begun since the last call."""

    on_start: Callable[[], None]
    is_busy: Callable[[], bool]
    is_stopping = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._factory = Factory(self)
        self._ports: list[Any] = []

    def run(self) -> None:
        reactor.callLater(0, self.on_start)  # type: ignore[arg-type]  # Twisted declares no self
        super().run()

    @property
    def http_factory(self) -> HTTPFactory:
        return self._factory

    @http_factory.setter
    def http_factory(self, factory: HTTPFactory) -> None:
        """Ignore the factory that Daphne creates in `run`: it has no option for another."""

    def kill_all_applications(self) -> Deferred[Any]:
        """Accept no connections, and finish the requests in progress first. Daphne cancels them at once, so a client
        would not learn whether its job was submitted."""
        self.is_stopping = True
        for port in self._ports:
            port.stopListening()
        finished = Deferred.fromFuture(asyncio.ensure_future(self._finish()))
        return finished.addCallback(lambda _: super(WebServer, self).kill_all_applications())

    async def _finish(self) -> None:
        until = time.monotonic() + FINISH_SECONDS
        is_busy = True
        while is_busy and time.monotonic() < until:
            await asyncio.sleep(_QUIET_SECONDS)
            is_busy = self.is_busy()

    def listen_success(self, port: Any) -> None:
        port.transport = Connection
        self._ports.append(port)
        super().listen_success(port)

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        return super().create_application(protocol, {**scope, CONNECTION: protocol})

    async def handle_reply(self, protocol: Any, message: Mapping[str, Any]) -> None:
        """Close a WebSocket with any code, and with the reason. Daphne drops the reason, and raises for the codes of
        servers, such as 1013, also while the socket is closing: the consumer would end without its `disconnect`, and
        the client get 1011."""
        is_close = message["type"] == "websocket.close" and isinstance(protocol, WebSocketProtocol)
        if is_close and protocol.state == protocol.STATE_OPEN:
            reason = encode_truncate(message.get("reason") or "", _MAX_REASON_BYTES)
            protocol.sendCloseFrame(message.get("code") or 1000, reason)
        elif not is_close or protocol.state == protocol.STATE_CONNECTING:
            await super().handle_reply(protocol, message)


def install(on_start: Callable[[], None], is_busy: Callable[[], bool]) -> None:
    """Let Daphne's command start this server, with the attribute that it has for this purpose."""
    WebServer.on_start, WebServer.is_busy = staticmethod(on_start), staticmethod(is_busy)
    cli.CommandLineInterface.server_class = WebServer
