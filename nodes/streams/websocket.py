"""`/ws/jobs/ID/stream`: a client's byte stream into a running job. Binary messages are the bytes.

Text messages are JSON. From the server: `{"opened": true}` first, `{"end": true}` when the job sends nothing more, and
`{"problem": {…}}` before it closes for a reason, with code 4000 + the status. From the client: `{"end": true}`."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import msgspec
from channels.auth import AuthMiddlewareStack
from django.conf import settings

from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.api.problems import Problem, body, invalid
from gpusched.lib.web.client_address import client_of, networks
from gpusched.lib.web.websockets import Output, Receive, Scope, Send, of_own_pages
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.streams import StreamReset
from nodes.streams import access
from nodes.streams.access import Right
from nodes.streams.locate import Target
from nodes.streams.opening import in_thread, reach
from nodes.streams.problems import problem_of
from nodes.streams.stream import Stream
from nodes.streams.watch import watch
from tenants.auth.page_access import Credential, Session

logger = logging.getLogger(__name__)
# A client's message; what has arrived and waits for the job is bounded by twice this.
MAX_MESSAGE_BYTES = 256 << 10
CLOSE_BASE = 4000
_MAX_OF_PROCESS = 4000
_LAST_SECONDS = 0.2
_OPENED, _END = '{"opened":true}', '{"end":true}'

limiter = ConcurrencyLimiter(
    _MAX_OF_PROCESS,
    settings.ENV.max_streams_per_user,
    code="too_many_job_streams",
    subject="streams into jobs are open",
    next_step="close streams that you no longer need",
)


async def _serve(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    await send({"type": "websocket.accept"})  # a rejected handshake carries no reason
    output: Output = scope["output"]
    output.limit_messages(MAX_MESSAGE_BYTES)
    client = _Client(receive, output)
    problem: Problem | None = None
    try:
        await client.run(_credential(scope), _target(scope), _address(scope))
    except Problem as refusal:
        problem = refusal
    if not client.has_left:
        await _close(output, send, problem)


def _by_token_or_page(scope: Scope, receive: Receive, send: Send) -> Any:
    """Authenticate as REST does: by the token in the header, else by the session of a page of this origin."""
    has_token = any(name == b"authorization" for name, _ in scope["headers"])
    return (_serve if has_token else _of_page)(scope, receive, send)


_of_page = of_own_pages(AuthMiddlewareStack(_serve))
stream_socket = _by_token_or_page


async def _close(output: Output, send: Send, problem: Problem | None) -> None:
    output.resume_reading()  # for the client's part of the closing handshake
    if problem is not None:
        output.send_text(msgspec.json.encode({"problem": body(problem)}).decode())
    with suppress(TimeoutError):  # a client that reads nothing
        await asyncio.wait_for(output.drained(), _LAST_SECONDS)
    code = 1000 if problem is None else CLOSE_BASE + problem.status
    await send({"type": "websocket.close", "code": code})


def _credential(scope: Scope) -> Credential | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            return str(value.decode("latin-1"))
    user, key = scope["user"], scope["session"].session_key
    return Session(user.pk, key, user.password) if user.is_authenticated and key else None


def _address(scope: Scope) -> str:
    peer = (scope.get("client") or [""])[0]
    forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for").decode("latin-1")
    return client_of(peer, forwarded, networks(settings.ENV.trusted_proxies))


def _target(scope: Scope) -> Callable[[], Target]:
    """Return a function that parses the target, or raises a 400: a stranger learns nothing from it first."""
    query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    job_id = scope["url_route"]["kwargs"]["job_id"]

    def parsed() -> Target:
        for name, values in query.items():
            if name not in ("port", "socket", "rank") or len(values) > 1:
                raise invalid([FieldError(name, "unknown", "use port or socket, and rank, each once")])
        numbers = {name: _number(name, query[name][0]) for name in ("port", "rank") if name in query}
        socket = query["socket"][0] if "socket" in query else None
        return Target(job_id, numbers.get("rank", 0), numbers.get("port"), socket)

    return parsed


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise invalid([FieldError(name, "invalid", "must be a number")])
    return int(text)


class _Client:
    """A connected client: copies between its socket and the stream until one of them ends."""

    def __init__(self, receive: Receive, output: Output) -> None:
        self._receive, self._output = receive, output
        self._waiting: deque[bytes | None] = deque()  # None: the client has ended its direction
        self._waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._is_paused = False
        self.has_left = False

    async def run(self, credential: Credential | None, parse: Callable[[], Target], address: str) -> None:
        """Open the stream and carry it. Raises Problem when it was refused or has to end."""
        leaving = asyncio.create_task(self._read())
        opening = asyncio.create_task(self._carry(credential, parse, address))
        try:
            await asyncio.wait({leaving, opening}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            else:
                leaving.result()
        finally:
            leaving.cancel()
            opening.cancel()
            await asyncio.gather(leaving, opening, return_exceptions=True)

    async def _carry(self, credential: Credential | None, parse: Callable[[], Target], address: str) -> None:
        identity, located = await in_thread(lambda: access.admit(credential, parse, address))
        assert credential is not None
        with limiter.slot(f"user {identity.user_id}"):
            async with await reach(located) as stream:
                self._output.send_text(_OPENED)
                with watch.over(Right(credential, located.job_id, located.attempt)) as refused:
                    await self._copy(stream, refused)

    async def _copy(self, stream: Stream, refused: "asyncio.Future[Problem]") -> None:
        """Copy both ways until both have ended. Raises Problem when the stream breaks, or the right to it ends."""
        copying = asyncio.gather(self._to_client(stream), self._to_job(stream))
        both: set[asyncio.Future[Any]] = {copying, refused}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if refused.done():
                raise refused.result()
            copying.result()
            await stream.finished()
        except StreamReset as error:
            assert stream.reset is not None
            raise problem_of(stream.reset) from error
        finally:
            copying.cancel()
            await asyncio.gather(copying, return_exceptions=True)

    async def _to_client(self, stream: Stream) -> None:
        while data := await stream.read():
            self._output.send_bytes(data)
            await self._output.drained()
        self._output.send_text(_END)

    async def _to_job(self, stream: Stream) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            if (data := self._waiting[0]) is None:
                stream.end()
                return
            await stream.write(data)
            self._waiting.popleft()
            self._waiting_bytes -= len(data)
            self._pace()

    async def _read(self) -> None:
        """Take the client's messages until it leaves. The socket is not read while enough of them wait."""
        has_ended = False
        while (message := await self._receive())["type"] == "websocket.receive":
            data = message.get("bytes")
            if data is not None and not has_ended:
                self._keep(data)
            elif "".join((message.get("text") or "").split()) == _END and not has_ended:
                has_ended = True
                self._keep(None)
            else:
                detail = 'expects binary messages, and the text {"end":true} once at the end'
                raise Problem(400, "bad_request", detail, next_step="see docs/rest.md, Streams into jobs")
        self.has_left = True

    def _keep(self, data: bytes | None) -> None:
        if data == b"":
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data or b"")
        self._arrived.set()
        self._pace()

    def _pace(self) -> None:
        """Read the socket only while little waits: then TCP stops a client that sends faster than the job reads."""
        if self._is_paused == (self._waiting_bytes >= MAX_MESSAGE_BYTES // 2):
            return
        self._is_paused = not self._is_paused
        if self._is_paused:
            self._output.pause_reading()
        else:
            self._output.resume_reading()
