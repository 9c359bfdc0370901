"""An agent of this process that carries streams to programs which echo, and a client that is really connected."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.db import connections

from gpusched.asgi import application
from gpusched.protocol import streams as frames
from gpusched.protocol.streams import Endpoint, Kind, Open, Reason
from nodes.streams import opening, watch
from nodes.streams.agents import AgentStreams, registry

TIMEOUT_SECONDS = 20.0


class EchoAgent:
    """The other end of an agent's connection. Port 1 is refused, port 2 never answers, port 3 reads nothing; others
    echo, and end when the client ends."""

    def __init__(self) -> None:
        self.ends: dict[int, Endpoint] = {}
        self.opened: list[Open] = []
        self.streams = AgentStreams(self, can_stream=True)

    # --- Output, as AgentStreams uses it ---

    def send_text(self, text: str) -> None: ...

    def send_bytes(self, data: bytes) -> None:
        stream_id, kind, payload = frames.decode(data)
        if kind is Kind.OPEN:
            self.ends[stream_id] = Endpoint(stream_id)
            self.opened.append(target := frames.read_open(payload))
            if target.port == 1:
                self.ends[stream_id].reset(Reason.NOT_LISTENING, "no process of the rank listens on port 1")
            elif target.port != 2:
                self.ends[stream_id].accept()
        elif stream_id in self.ends:
            self.ends[stream_id].receive(kind, payload)
        asyncio.get_running_loop().call_soon(self._advance, stream_id)

    async def drained(self) -> None: ...

    def limit_messages(self, max_bytes: int) -> None: ...

    def limit_unsent(self, max_bytes: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def _advance(self, stream_id: int) -> None:
        end = self.ends[stream_id]
        target = self.opened[stream_id - 1]
        while target.port != 3 and end.available and end.room:
            end.write(end.read(min(end.room, 1 << 16)))
        if end.is_at_end:
            end.end()
        self.flush(stream_id)

    def flush(self, stream_id: int) -> None:
        end = self.ends[stream_id]
        while end.has_frame:
            self.streams.receive(end.next_frame())

    def reset(self, reason: Reason) -> None:
        """End all streams, as the agent does when their rank has ended."""
        for stream_id, end in self.ends.items():
            end.reset(reason, f"because: {reason}")
            self.flush(stream_id)


@contextmanager
def echoing(node_id: int, agent: EchoAgent | None = None) -> Iterator[EchoAgent]:
    """Connect such an agent as the one of a node."""
    agent = agent or EchoAgent()
    registry.connect(node_id, agent.streams)
    try:
        yield agent
    finally:
        registry.disconnect(agent.streams)


class Client:
    """A connected client: the text messages and the bytes that it got, and the code with which it was closed."""

    def __init__(self, socket: WebsocketCommunicator) -> None:
        self.socket = socket
        self.notes: list[dict[str, Any]] = []
        self.data = b""
        self.code: int | None = None

    async def listen(self) -> None:
        """Take the next message."""
        message = await asyncio.wait_for(self.socket.output_queue.get(), TIMEOUT_SECONDS)
        if message["type"] == "websocket.close":
            self.code = message["code"]
        elif message.get("bytes") is not None:
            self.data += message["bytes"]
        else:
            self.notes.append(json.loads(message["text"]))

    async def until(self, is_met: Any) -> None:
        while not is_met():
            await self.listen()

    async def closed(self) -> dict[str, Any] | None:
        """Wait for the close; return the problem, if there was one."""
        await self.until(lambda: self.code is not None)
        return next((note["problem"] for note in self.notes if "problem" in note), None)

    async def say(self, message: bytes | str) -> None:
        kind = "text" if isinstance(message, str) else "bytes"
        await self.socket.send_input({"type": "websocket.receive", kind: message})


@asynccontextmanager
async def client(path: str, *headers: tuple[str, str]) -> AsyncIterator[Client]:
    """Connect a client; the handshake must be accepted."""
    encoded = [(b"host", b"localhost"), *((name.encode(), value.encode("latin-1")) for name, value in headers)]
    socket = WebsocketCommunicator(application, path, headers=encoded)
    is_connected, _ = await socket.connect(timeout=TIMEOUT_SECONDS)
    assert is_connected
    connected = Client(socket)
    try:
        yield connected
    finally:
        await socket.disconnect(timeout=TIMEOUT_SECONDS)


@asynccontextmanager
async def cleaned() -> AsyncIterator[None]:
    """Leave nothing of this event loop: no task, no socket, no database connection of a thread."""
    try:
        yield
    finally:
        await opening.peers.close()
        if watch.watch._task is not None:
            watch.watch._task.cancel()
        both = threading.Barrier(2)

        def close() -> None:
            both.wait(10)  # so each thread does it
            connections.close_all()

        await asyncio.gather(*(asyncio.wrap_future(opening._threads.submit(close)) for _ in range(2)))
        await sync_to_async(connections.close_all)()
