"""The conversation of one node with the control plane: a WebSocket, or HTTP where one cannot be had; for ever."""

import asyncio
import logging
import random
import time

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from gpusched.agent.identity import JoinError
from gpusched.agent.node import Node
from gpusched.protocol.messages import Desired

logger = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Desired).decode
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 3.0
# What happens together is told together: a first event at once, what follows on its heels a moment later.
GATHER_SECONDS, REST_SECONDS = 0.003, 0.03
HTTP_SECONDS = 30.0
NOT_AUTHENTICATED = 4401
MOST_BYTES = 16 << 20


class Refused(Exception):
    """The server does not know this node's credential."""


async def keep_talking(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient) -> None:
    """Never ends. Without the control plane it keeps trying, and everything that runs here runs on."""
    pause = FIRST_PAUSE_SECONDS
    said = ""
    while True:
        started_at = time.monotonic()
        problem = ""
        try:
            node.begin()
            await _over_websocket(node, heartbeat_seconds)
        except Refused:
            problem = await _join_again(node)
        except InvalidHandshake as error:
            # There is a server, but something between does not let WebSockets through.
            problem = await _over_http(node, heartbeat_seconds, http) or f"no WebSocket: {error}"
        except (OSError, TimeoutError, ConnectionClosed, InvalidURI, msgspec.DecodeError) as error:
            problem = f"{node.identity.url}: {error or type(error).__name__}"
        if time.monotonic() - started_at > 5:
            pause, said = FIRST_PAUSE_SECONDS, ""
        if problem and problem != said:
            logger.warning("%s: %s; trying again", node.identity.name, problem, extra={"node": node.identity.name})
            said = problem
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads 200 agents, hides nothing
        pause = min(LONGEST_PAUSE_SECONDS, pause * 2)


async def _join_again(node: Node) -> str:
    try:
        if await node.join_again():
            return "joined again"
    except JoinError as error:
        return str(error)
    return "the server does not know this node's credential; join it again: gpusched-agent join URL TOKEN"


async def _over_websocket(node: Node, heartbeat_seconds: float) -> None:
    url = node.identity.url.replace("http", "ws", 1) + "/ws/agent/"
    headers = {"Authorization": f"Bearer {node.identity.credential}"}
    async with connect(
        url, additional_headers=headers, compression=None, max_size=MOST_BYTES, open_timeout=10, close_timeout=1
    ) as socket:
        heard = _Heard()
        speaking = asyncio.create_task(_speak(node, socket, heartbeat_seconds, heard))
        try:
            async for text in socket:
                heard.at = time.monotonic()
                await node.hear(_decode(text))
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == NOT_AUTHENTICATED:
                raise Refused from closed
            raise
        finally:
            speaking.cancel()
            await asyncio.gather(speaking, return_exceptions=True)


class _Heard:
    def __init__(self) -> None:
        self.at = time.monotonic()


async def _speak(node: Node, socket: ClientConnection, heartbeat_seconds: float, heard: _Heard) -> None:
    patience = max(10.0, 5 * heartbeat_seconds)
    wait = random.uniform(0, heartbeat_seconds)  # noqa: S311 - so that a fleet does not speak in chorus
    while True:
        node.dirty.clear()
        await socket.send(msgspec.json.encode(await node.message()), text=True)
        said_at = time.monotonic()
        try:
            await asyncio.wait_for(node.dirty.wait(), wait)
            await asyncio.sleep(max(GATHER_SECONDS, REST_SECONDS - (time.monotonic() - said_at)))
        except TimeoutError:
            pass
        wait = heartbeat_seconds
        if time.monotonic() - heard.at > patience:
            # Half a connection: what we send goes nowhere. Closing it makes the listener fail and start anew.
            await socket.close()
            return


async def _over_http(node: Node, heartbeat_seconds: float, http: httpx.AsyncClient) -> str:
    """The same messages by POST for a while, before a WebSocket is tried again; gives what went wrong, if anything."""
    until = time.monotonic() + HTTP_SECONDS
    while time.monotonic() < until:
        node.dirty.clear()
        message = await node.message()
        try:
            answer = await http.post(
                f"{node.identity.url}/agent/sync",
                content=msgspec.json.encode(message),
                headers={"Authorization": f"Bearer {node.identity.credential}"},
            )
        except httpx.HTTPError as error:
            return f"{node.identity.url}: {error or type(error).__name__}"
        if answer.status_code == 401:
            return await _join_again(node)
        if answer.status_code != 200:
            return f"{node.identity.url} answers HTTP {answer.status_code}"
        await node.hear(_decode(answer.content))
        try:
            await asyncio.wait_for(node.dirty.wait(), heartbeat_seconds)
        except TimeoutError:
            continue
    return ""
