"""Byte streams into a running job, over a WebSocket of the server. Nothing on the node listens on the network."""

import asyncio
import ssl
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import urlencode

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException

from gpusched import __version__, tls
from gpusched.client.config import Config
from gpusched.client.errors import GpuschedError, Invalid, Unreachable, from_answer
from gpusched.protocol.addresses import Addresses, is_local

_OPEN_SECONDS = 20.0
_MESSAGE_BYTES = 64 << 10
_END = '{"end":true}'


class _Note(msgspec.Struct):
    """A text message of the server."""

    opened: bool = False
    end: bool = False
    problem: msgspec.Raw = msgspec.Raw()


class JobStream:
    """An open stream: one task may read while another writes. Close it, or use `async with`.

    When the job ends, or your right to it does, reading and writing raise GpuschedError with the reason in `code`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._rest = b""
        self._is_at_end = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def read(self, limit: int = _MESSAGE_BYTES) -> bytes:
        """Return the next bytes, at most `limit`; empty once the job has sent everything."""
        while not self._rest and not self._is_at_end:
            message = await self._receive()
            if isinstance(message, bytes):
                self._rest = message
            else:
                self._is_at_end = message.end
        data, self._rest = self._rest[:limit], self._rest[limit:]
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the job does not read them."""
        try:
            for start in range(0, len(data), _MESSAGE_BYTES):
                await self._socket.send(data[start : start + _MESSAGE_BYTES])
        except ConnectionClosed as error:
            raise await self._reason() from error

    async def end(self) -> None:
        """Send nothing more; the job can still answer."""
        try:
            await self._socket.send(_END)
        except ConnectionClosed as error:
            raise await self._reason() from error

    async def close(self) -> None:
        """End both directions."""
        await self._socket.close()

    async def opened(self) -> None:
        """Wait for the job's program to accept; `open_stream` has done that."""
        message = await self._receive()
        if isinstance(message, bytes) or not message.opened:
            raise Unreachable("the server sent something else than the start of a stream")

    async def _receive(self) -> "bytes | _Note":
        try:
            message = await self._socket.recv()
        except ConnectionClosed as error:
            raise _closed(error) from error
        if isinstance(message, bytes):
            return message
        note = msgspec.json.decode(message, type=_Note)
        if bytes(note.problem):
            raise _failure(bytes(note.problem))
        return note

    async def _reason(self) -> GpuschedError:
        """Return why the server has closed the stream: its last message says so."""
        try:
            while True:
                await self._receive()
        except GpuschedError as error:
            return error


class Configured(Protocol):
    """A client: its server and token."""

    @property
    def config(self) -> Config: ...

    @property
    def addresses(self) -> Addresses: ...


async def open_stream(
    client: Configured, job_id: int, *, port: int | None = None, socket: str | None = None, rank: int = 0
) -> JobStream:
    """Open a byte stream to a TCP port of a running job, or to a Unix socket in its GPUSCHED_SOCKET_DIR. Raises
    Conflict while nothing listens there."""
    given = {"port": port, "socket": socket, "rank": rank}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    failures = []
    for _ in client.addresses.all:
        address = client.addresses.current
        try:
            return await _open(address, client.config, f"/ws/jobs/{job_id}/stream?{query}")
        except Unreachable as error:
            client.addresses.move_on(address)
            failures.append(error)
    if len(failures) == 1:
        raise failures[0]
    raise Unreachable("; ".join(str(failure) for failure in failures), next_step=failures[-1].next_step)


async def _open(address: str, config: Config, path: str) -> JobStream:
    headers = {"User-Agent": f"gpusched/{__version__}"}
    if config.token:
        headers["Authorization"] = f"Bearer {config.token}"
    try:
        connection = await connect(
            address.replace("http", "ws", 1) + path,
            ssl=_tls_context(config),
            proxy=None if is_local(address) else True,
            additional_headers=headers,
            user_agent_header=None,
            compression=None,
            open_timeout=_OPEN_SECONDS,
            close_timeout=1,
            max_size=1 << 20,
            max_queue=4,
        )
    except (OSError, InvalidHandshake, WebSocketException) as error:
        if why := tls.distrust(error):
            raise Unreachable(f"cannot trust {address}: {why}", next_step=tls.NEXT_STEP) from error
        step = "check the URL, and that a proxy in between passes WebSockets"
        raise Unreachable(f"cannot open a stream at {address}: {tls.reason(error)}", next_step=step) from error
    stream = JobStream(connection)
    try:
        await asyncio.wait_for(stream.opened(), _OPEN_SECONDS)
    except TimeoutError as error:
        await stream.close()
        raise Unreachable(f"{address} did not answer in time") from error
    except BaseException:
        await stream.close()
        raise
    return stream


def _tls_context(config: Config) -> "ssl.SSLContext | None":
    """Return the context for https; None for http."""
    if not config.url.startswith("https:"):
        return None
    try:
        return tls.context(config.ca_file)
    except tls.TlsFileError as error:
        raise Invalid(f"{tls.CA_FILE}: {error}") from error


def _failure(problem: bytes) -> GpuschedError:
    status = msgspec.json.decode(problem, type=dict).get("status")
    return from_answer(status if isinstance(status, int) else 500, problem, "the stream")


def _closed(error: ConnectionClosed) -> GpuschedError:
    return Unreachable(f"the connection to the server broke: {error}", next_step="open a new stream")
