"""Reach an agent that is connected to another head: over a WebSocket to that head's web server, one per stream.

The heads share the secret key, with which the one that asks signs the node."""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.core import signing
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidStatus, WebSocketException

from gpusched.protocol.streams import Violation
from nodes.streams.peers import CONNECT_SECONDS, MAX_MESSAGE_BYTES, Pipe, answered

logger = logging.getLogger(__name__)
# The clocks of two heads can differ.
_SIGNED_SECONDS = 300
_SALT = "gpusched.heads"
# A head that does not answer is tried again after this time: otherwise each stream would wait for it.
_AWAY_SECONDS = 5.0
_FAILURES = (OSError, WebSocketException, Violation)


def signature(node_id: int) -> str:
    """Return the proof that a head asks for this node's agent, as an Authorization header."""
    return f"Head {signing.dumps(node_id, salt=_SALT)}"


def is_signed(header: str, node_id: int) -> bool:
    """Return whether an Authorization header is from a head with the same secret key, and of the last minutes."""
    scheme, _, text = header.partition(" ")
    try:
        return scheme == "Head" and signing.loads(text, salt=_SALT, max_age=_SIGNED_SECONDS) == node_id
    except signing.BadSignature:
        return False


@dataclass(frozen=True)
class _Place:
    """An address of a head's name: in a cluster of containers, one name stands for all heads. `address`: empty
    if it has none."""

    url: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.url} ({self.address})" if self.address else self.url


class Heads:
    """The heads at these URLs; this one may be among them."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._away_until: dict[_Place, float] = {}

    async def ask(self, node_id: int) -> Pipe | None:
        """Return a connection to the head that has the node's agent; None if none of them has it."""
        now = asyncio.get_running_loop().time()
        self._away_until = {place: until for place, until in self._away_until.items() if until > now}
        for url in self._urls:
            for place in await _places(url):
                if place in self._away_until:
                    continue
                try:
                    return await _connect(place, node_id)
                except EOFError:
                    pass  # it does not have the agent
                except _FAILURES as error:
                    self._away_until[place] = now + _AWAY_SECONDS
                    logger.warning("the head %s cannot be asked: %s", place, _why(error))
        return None

    async def faults(self) -> list[str]:
        """Return why heads cannot be asked, in a sentence each."""
        faults = []
        for place in [place for url in self._urls for place in await _places(url)]:
            try:
                await _connect(place, 0)
            except EOFError:
                pass  # an answer: there is no such node
            except _FAILURES as error:
                faults.append(f"{place}: {_why(error)}")
        return faults


async def _places(url: str) -> list[_Place]:
    """Return all addresses of a name; a place without address if it has none."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError:
        return [_Place(url, "", port)]
    return [_Place(url, address, port) for address in dict.fromkeys(str(where[0]) for *_, where in found)]


def _why(error: Exception) -> str:
    if isinstance(error, InvalidStatus) and error.response.status_code == 403:
        return "it has another secret key, or another time"
    return str(error) or type(error).__name__


async def _connect(place: _Place, node_id: int) -> Pipe:
    """Ask a head for an agent. EOFError if it does not have it; one of _FAILURES if it cannot be asked."""
    if not place.address:
        raise OSError("its name has no address")
    async with asyncio.timeout(CONNECT_SECONDS):
        return await answered(_HeadPipe(await _opened(place, node_id)))


async def _opened(place: _Place, node_id: int) -> ClientConnection:
    return await connect(
        f"{place.url.replace('http', 'ws', 1)}/ws/heads/{node_id}",
        host=place.address,
        port=place.port,
        proxy=None,
        additional_headers={"Authorization": signature(node_id)},
        compression=None,
        max_size=MAX_MESSAGE_BYTES,
        # A head whose host is lost closes nothing.
        ping_interval=5,
        ping_timeout=10,
    )


class _HeadPipe:
    """A connection to another head. Its messages are sent by a task, in order."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._unsent: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._sending = asyncio.create_task(self._send())

    def send(self, message: bytes) -> None:
        if not self._is_closed:
            self._unsent.append(message)
            self._changed.set()

    async def messages(self) -> AsyncIterator[bytes]:
        while True:
            try:
                message = await self._connection.recv()
            except ConnectionClosedOK:
                return
            except ConnectionClosed as error:
                raise OSError(f"the connection to the head broke: {error}") from error
            if isinstance(message, str):
                raise Violation("a text message")
            yield message

    def close(self) -> None:
        self._is_closed = True
        self._changed.set()

    async def _send(self) -> None:
        try:
            while self._unsent or not self._is_closed:
                while self._unsent:
                    await self._connection.send(self._unsent.popleft())
                if not self._is_closed:
                    self._changed.clear()
                    await self._changed.wait()
        except ConnectionClosed:
            pass  # who reads the messages learns why
        finally:
            await self._connection.close()
