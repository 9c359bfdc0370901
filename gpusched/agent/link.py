"""Keep one node connected to the control plane: by a WebSocket, or by HTTP if no WebSocket is possible."""

import asyncio
import logging
import random
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socket import IPPROTO_TCP, TCP_USER_TIMEOUT

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake, WebSocketException

from gpusched import tls
from gpusched.agent import answers
from gpusched.agent.answers import NotTheServer
from gpusched.agent.identity import Identity, JoinError
from gpusched.agent.node import Node
from gpusched.agent.streams.streams import Streams
from gpusched.agent.supervision import Pulse, until_first
from gpusched.protocol.addresses import has_tls, is_local
from gpusched.protocol.agent_messages import BOOT_HEADER, Desired
from gpusched.protocol.streams import HEADER, HEADER_VALUE

logger = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Desired).decode
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 3.0
# Send events that happen together in one message: a first event at once, the next ones a moment later.
GATHER_SECONDS, MIN_INTERVAL_SECONDS = 0.003, 0.03
HTTP_SECONDS = 30.0
NOT_AUTHENTICATED = 4401
MAX_BYTES = 16 << 20
# Answers that wait for the disk.
MAX_ANSWERS = 100
# A report waits behind at most this much unsent data of streams in the kernel, and as much in this process.
MAX_UNSENT_BYTES = 128 << 10
# A message that a lost host does not acknowledge for this time ends the connection, if there is another address.
LOST_MILLISECONDS = 3000
# An agent leaves a head that writes no message for the first time, if another one is ready. It checks at intervals of
# the second: the node counts as lost 15 s after its last message that was written.
UNWRITTEN_SECONDS, ASK_SECONDS = 6.0, 3.0
# Until the next address is tried, if the host of one does not answer at all.
OPEN_SECONDS, NEXT_SECONDS = 10.0, 2.0
_TCP_NOTSENT_LOWAT = 25  # the socket module does not name it


class Refused(Exception):
    """The server does not accept this node's credential."""


class NoWebSocket(Exception):
    """The server answers, but a proxy in between does not pass WebSockets."""


class CredentialChanged(Exception):
    """The node must connect anew, with another credential."""


class Unreachable(Exception):
    """The network failed; the text is a sentence. The agent itself is well and retries for ever."""


async def run_connection(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse) -> None:
    """Keep the connection until a part of the agent itself fails. Without the control plane, retry; the ranks
    continue."""
    pause = FIRST_PAUSE_SECONDS
    logged: dict[str, str] = {}
    tries = 0
    while True:
        started_at, address, credential = time.monotonic(), node.url, node.credentials.presented
        node.begin()
        problem = await _converse(node, heartbeat_seconds, http, pulse)
        pulse.beat()
        if node.credentials.presented == credential:
            node.addresses.move_on(address)
        if time.monotonic() - started_at > 5:
            pause, tries = FIRST_PAUSE_SECONDS, 0
            logged.clear()
        if problem and problem != logged.get(address):
            logger.warning("%s: %s; trying again", node.identity.name, problem, extra={"node": node.identity.name})
            logged[address] = problem
        tries += 1
        if tries % len(node.addresses):
            continue  # the next address may be up
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads 200 agents, hides nothing
        pause = min(MAX_PAUSE_SECONDS, pause * 2)


async def _converse(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse) -> str:
    """Talk until the conversation breaks; return what went wrong with the server or the network, if anything."""
    try:
        try:
            await _over_websocket(node, heartbeat_seconds, http, pulse)
        except Refused:
            return await _after_refusal(node)
        except CredentialChanged:
            return ""
        except NoWebSocket as error:
            return await _over_http(node, heartbeat_seconds, http, pulse) or f"no WebSocket: {error}"
    except (Unreachable, NotTheServer) as error:
        return str(error)
    return ""


async def _after_refusal(node: Node) -> str:
    """Present another credential next, or join again. Return what went wrong, or was done."""
    if node.credentials.try_another():
        return ""
    try:
        if await node.join_again():
            return "joined again"
    except JoinError as error:
        return str(error)
    return "the server does not accept this node's credential; join again: gpusched-agent join URL TOKEN"


@contextmanager
def _network(node: Node) -> Iterator[None]:
    """Turn a failure of the network into Unreachable or Refused. An OSError of any other part is the agent's own."""
    try:
        yield
    except ConnectionClosedOK as closed:
        raise Unreachable("") from closed  # the server restarts: nothing to log
    except ConnectionClosed as closed:
        if closed.rcvd is not None and closed.rcvd.code == NOT_AUTHENTICATED:
            raise Refused from closed
        raise Unreachable(f"{node.url}: {closed}") from closed
    except (OSError, WebSocketException, httpx.HTTPError) as error:
        if fault := tls.fault(node.url, error):
            raise Unreachable("; ".join(fault)) from error
        raise Unreachable(f"{node.url}: {tls.reason(error) or f'{type(error).__name__}{_doctor(node.url)}'}") from error


def _doctor(url: str) -> str:
    return "; gpusched-agent doctor may know why" if has_tls(url) else ""


async def _over_websocket(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse) -> None:
    socket = await _connected(node)
    last_answer, streams, handling = _LastAnswer(), node.streams(), _Handling(node)
    try:
        await until_first(
            _send(node, socket, heartbeat_seconds, last_answer, pulse, streams),
            _receive(node, socket, last_answer, streams, handling),
            handling.run(),
            _send_streams(node, socket, streams),
            *([_watch_heads(node, heartbeat_seconds, last_answer, http)] if len(node.addresses) > 1 else []),
        )
    finally:
        streams.close()
        await socket.close()


async def _connected(node: Node) -> ClientConnection:
    url = node.url.replace("http", "ws", 1) + "/ws/agent/"
    authorization = f"Bearer {node.credentials.presented}"
    headers = {"Authorization": authorization, HEADER: HEADER_VALUE, BOOT_HEADER: node.boot_id}
    with _network(node):
        try:
            connection = await connect(
                url,
                ssl=_tls_context(node.identity, node.url),
                proxy=None if is_local(node.url) else True,
                additional_headers=headers,
                compression=None,
                max_size=MAX_BYTES,
                open_timeout=NEXT_SECONDS if len(node.addresses) > 1 else OPEN_SECONDS,
                close_timeout=1,
            )
        except InvalidHandshake as error:
            # So looks a refused certificate, too; the requests that follow may use a connection that is open.
            raise NoWebSocket(f"{error}{_doctor(node.url)}") from error
        options = {_TCP_NOTSENT_LOWAT: MAX_UNSENT_BYTES}
        if len(node.addresses) > 1:
            options[TCP_USER_TIMEOUT] = LOST_MILLISECONDS
        for option, value in options.items():
            connection.transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, option, value)
        return connection


def _tls_context(identity: Identity, url: str) -> ssl.SSLContext | None:
    """Return the context for an address of https; None for http."""
    if not has_tls(url):
        return None
    try:
        return tls.context(identity.ca_file, identity.certificate_file)
    except tls.TlsFileError as error:
        raise Unreachable(str(error)) from error


class _Handling:
    """Handles the answers of one connection beside it, in order: a disk that does not answer must not silence the node.
    The oldest of too many are skipped, as the server repeats what has not happened."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._waiting: deque[Desired] = deque(maxlen=MAX_ANSWERS)
        self._has_answer = asyncio.Event()

    def add(self, answer: Desired) -> None:
        self._waiting.append(answer)
        self._has_answer.set()

    async def run(self) -> None:
        """Handle answers for ever. Raises CredentialChanged if the node must connect anew."""
        while True:
            await self._has_answer.wait()
            self._has_answer.clear()
            while self._waiting:
                if await self._node.handle_answer(self._waiting.popleft()):
                    raise CredentialChanged


class _LastAnswer:
    """When the head answered last: anything, and to a message, which it has written then."""

    def __init__(self) -> None:
        self.at = self.written_at = time.monotonic()


async def _receive(
    node: Node, socket: ClientConnection, last_answer: _LastAnswer, streams: Streams, handling: _Handling
) -> None:
    while True:
        with _network(node):
            text = await socket.recv()
        if isinstance(text, bytes):
            streams.receive(text)
            continue
        last_answer.at = time.monotonic()
        answer = answers.read(_decode, text, node.url)
        if answer.seq:
            last_answer.written_at = last_answer.at
        handling.add(answer)


async def _watch_heads(node: Node, heartbeat_seconds: float, last_answer: _LastAnswer, http: httpx.AsyncClient) -> None:
    """Leave a head that answers without having written anything, if another one is ready: it alone may have lost the
    database. While all have lost it, the connection and its streams stay."""
    seconds = max(UNWRITTEN_SECONDS, 3 * heartbeat_seconds)
    while True:
        await asyncio.sleep(ASK_SECONDS)
        if time.monotonic() - last_answer.written_at > seconds and await _is_another_ready(node, http):
            raise Unreachable(f"{node.url} has written no message for {seconds:g} s, and another address is ready")


async def _is_another_ready(node: Node, http: httpx.AsyncClient) -> bool:
    for url in node.addresses.all:
        with suppress(httpx.HTTPError):
            if url != node.url:
                answer = await http.get(f"{url}/ready", params={"head": "true"}, timeout=NEXT_SECONDS)
                if answer.status_code == 200:
                    return True
    return False


async def _send_streams(node: Node, socket: ClientConnection, streams: Streams) -> None:
    """Send frames as fast as the network takes them. A report does not wait for them: it goes out after the frame that
    is being sent."""
    while True:
        frame = await streams.next_frame()
        with _network(node):
            await socket.send(frame)


async def _send(
    node: Node,
    socket: ClientConnection,
    heartbeat_seconds: float,
    last_answer: _LastAnswer,
    pulse: Pulse,
    streams: Streams,
) -> None:
    timeout = max(10.0, 5 * heartbeat_seconds)
    wait = random.uniform(0, heartbeat_seconds)  # noqa: S311 - spreads the messages of a fleet
    while True:
        node.dirty.clear()
        text = msgspec.json.encode(await node.message())
        streams.end_with_ranks()
        with _network(node):
            await socket.send(text, text=True)
        pulse.beat()
        sent_at = time.monotonic()
        try:
            await asyncio.wait_for(node.dirty.wait(), wait)
            await asyncio.sleep(max(GATHER_SECONDS, MIN_INTERVAL_SECONDS - (time.monotonic() - sent_at)))
        except TimeoutError:
            pass
        wait = heartbeat_seconds
        if time.monotonic() - last_answer.at > timeout:
            # A half-open connection: our messages go nowhere.
            raise Unreachable(f"{node.url} has not answered for {timeout:g} s")


async def _over_http(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse) -> str:
    """Exchange the same messages by POST for a while, before a WebSocket is tried again. Return the problem, if any."""
    handling = _Handling(node)
    try:
        await until_first(_post(node, heartbeat_seconds, http, pulse, handling), handling.run())
    except Refused:
        return await _after_refusal(node)
    except CredentialChanged:
        pass
    return ""


async def _post(
    node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse, handling: _Handling
) -> None:
    until = time.monotonic() + HTTP_SECONDS
    while time.monotonic() < until:
        node.dirty.clear()
        message = await node.message()
        with _network(node):
            answer = await http.post(
                f"{node.url}/agent/sync",
                content=msgspec.json.encode(message),
                headers={"Authorization": f"Bearer {node.credentials.presented}"},
            )
        pulse.beat()
        if answer.status_code == 401:
            raise Refused
        if answer.status_code != 200:
            raise Unreachable(f"{node.url} answers HTTP {answer.status_code}")
        handling.add(answers.read(_decode, answer.content, node.url))
        with suppress(TimeoutError):
            await asyncio.wait_for(node.dirty.wait(), heartbeat_seconds)
