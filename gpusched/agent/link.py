"""The conversation of one node with the control plane: a WebSocket, or HTTP where one cannot be had; for ever."""

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK, InvalidHandshake, WebSocketException

from gpusched.agent import answers
from gpusched.agent.answers import NotTheServer
from gpusched.agent.identity import JoinError
from gpusched.agent.node import Node
from gpusched.agent.supervision import Pulse, until_first
from gpusched.protocol.agent_messages import Desired

logger = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Desired).decode
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 3.0
# What happens together is told together: a first event at once, what follows on its heels a moment later.
GATHER_SECONDS, REST_SECONDS = 0.003, 0.03
HTTP_SECONDS = 30.0
NOT_AUTHENTICATED = 4401
MAX_BYTES = 16 << 20


class Refused(Exception):
    """The server does not know this node's credential."""


class NoWebSocket(Exception):
    """There is a server, but something between does not let WebSockets through."""


class Unreachable(Exception):
    """The network failed, as a sentence. The agent itself is well and tries for ever."""


async def run_connection(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse) -> None:
    """Talk until something of the agent itself fails. Without the control plane it keeps trying, and everything that
    runs here runs on."""
    pause = FIRST_PAUSE_SECONDS
    logged = ""
    while True:
        started_at = time.monotonic()
        node.begin()
        problem = await _converse(node, heartbeat_seconds, http, pulse)
        pulse.beat()
        if time.monotonic() - started_at > 5:
            pause, logged = FIRST_PAUSE_SECONDS, ""
        if problem and problem != logged:
            logger.warning("%s: %s; trying again", node.identity.name, problem, extra={"node": node.identity.name})
            logged = problem
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads 200 agents, hides nothing
        pause = min(LONGEST_PAUSE_SECONDS, pause * 2)


async def _converse(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse) -> str:
    """Talk until the conversation breaks; return what went wrong with the server or the network, if anything."""
    try:
        try:
            await _over_websocket(node, heartbeat_seconds, pulse)
        except Refused:
            return await _join_again(node)
        except NoWebSocket as error:
            return await _over_http(node, heartbeat_seconds, http, pulse) or f"no WebSocket: {error}"
    except (Unreachable, NotTheServer) as error:
        return str(error)
    return ""


async def _join_again(node: Node) -> str:
    try:
        if await node.join_again():
            return "joined again"
    except JoinError as error:
        return str(error)
    return "the server does not know this node's credential; join it again: gpusched-agent join URL TOKEN"


@contextmanager
def _network(node: Node) -> Iterator[None]:
    """Turn a failure of the network into Unreachable or Refused. An OSError of any other part is the agent's own."""
    try:
        yield
    except ConnectionClosedOK as closed:
        raise Unreachable("") from closed  # a server that restarts: nothing to log
    except ConnectionClosed as closed:
        if closed.rcvd is not None and closed.rcvd.code == NOT_AUTHENTICATED:
            raise Refused from closed
        raise Unreachable(f"{node.identity.url}: {closed}") from closed
    except (OSError, WebSocketException, httpx.HTTPError) as error:
        raise Unreachable(f"{node.identity.url}: {error or type(error).__name__}") from error


async def _over_websocket(node: Node, heartbeat_seconds: float, pulse: Pulse) -> None:
    socket = await _connected(node)
    heard = _Heard()
    try:
        await until_first(_speak(node, socket, heartbeat_seconds, heard, pulse), _listen(node, socket, heard))
    finally:
        await socket.close()


async def _connected(node: Node) -> ClientConnection:
    url = node.identity.url.replace("http", "ws", 1) + "/ws/agent/"
    headers = {"Authorization": f"Bearer {node.identity.credential}"}
    with _network(node):
        try:
            return await connect(
                url, additional_headers=headers, compression=None, max_size=MAX_BYTES, open_timeout=10, close_timeout=1
            )
        except InvalidHandshake as error:
            raise NoWebSocket(str(error)) from error


class _Heard:
    def __init__(self) -> None:
        self.at = time.monotonic()


async def _listen(node: Node, socket: ClientConnection, heard: _Heard) -> None:
    while True:
        with _network(node):
            text = await socket.recv()
        heard.at = time.monotonic()
        await node.hear(answers.read(_decode, text, node.identity.url))


async def _speak(node: Node, socket: ClientConnection, heartbeat_seconds: float, heard: _Heard, pulse: Pulse) -> None:
    patience = max(10.0, 5 * heartbeat_seconds)
    wait = random.uniform(0, heartbeat_seconds)  # noqa: S311 - so that a fleet does not speak in chorus
    while True:
        node.dirty.clear()
        text = msgspec.json.encode(await node.message())
        with _network(node):
            await socket.send(text, text=True)
        pulse.beat()
        said_at = time.monotonic()
        try:
            await asyncio.wait_for(node.dirty.wait(), wait)
            await asyncio.sleep(max(GATHER_SECONDS, REST_SECONDS - (time.monotonic() - said_at)))
        except TimeoutError:
            pass
        wait = heartbeat_seconds
        if time.monotonic() - heard.at > patience:
            # Half a connection: what we send goes nowhere.
            raise Unreachable(f"{node.identity.url} has not answered for {patience:g} s")


async def _over_http(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient, pulse: Pulse) -> str:
    """The same messages by POST for a while, before a WebSocket is tried again; gives what went wrong, if anything."""
    until = time.monotonic() + HTTP_SECONDS
    while time.monotonic() < until:
        node.dirty.clear()
        message = await node.message()
        with _network(node):
            answer = await http.post(
                f"{node.identity.url}/agent/sync",
                content=msgspec.json.encode(message),
                headers={"Authorization": f"Bearer {node.identity.credential}"},
            )
        pulse.beat()
        if answer.status_code == 401:
            return await _join_again(node)
        if answer.status_code != 200:
            return f"{node.identity.url} answers HTTP {answer.status_code}"
        await node.hear(answers.read(_decode, answer.content, node.identity.url))
        try:
            await asyncio.wait_for(node.dirty.wait(), heartbeat_seconds)
        except TimeoutError:
            continue
    return ""
