"""The streams of the agents connected to this web process. They share each agent's WebSocket with its reports, which
have priority: a report is queued at once, a frame only when the connection has room."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from gpusched.lib.histograms import pending
from gpusched.lib.web.websockets import Output
from gpusched.protocol import streams as frames
from gpusched.protocol.streams import Kind, Reason, Source, Turns

logger = logging.getLogger(__name__)
# As in gpusched/agent/link.py.
MAX_UNSENT_BYTES = 128 << 10
BYTES = "gpu_scheduler_stream_bytes_total"
LOST = "the connection to the node's agent broke"


class Carried(Source, Protocol):
    """A stream over an agent's connection: one of this process, or one that it relays for another."""

    @property
    def is_done(self) -> bool: ...

    def receive(self, kind: Kind, payload: bytes) -> None: ...

    def lose(self, reason: Reason, detail: str) -> None: ...


C = TypeVar("C", bound=Carried)


class AgentStreams:
    """The streams of one connected agent. `can_stream`: it understands frames; older agents do not."""

    def __init__(self, output: Output, *, can_stream: bool) -> None:
        self.can_stream = can_stream
        self._output = output
        self._streams: dict[int, Carried] = {}
        self._last_id = 0
        self._turns = Turns()
        self._ready = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def start(self, make: Callable[[int, Callable[[], None]], C]) -> C:
        """Carry the stream that `make` creates for a new id and a function to call when it has frames or is over."""
        self._last_id = stream_id = self._last_id + 1
        stream = self._streams[stream_id] = make(stream_id, lambda: self._wake(stream_id))
        if self._is_closed:
            stream.lose(Reason.AGENT_LOST, LOST)
        elif self._sending is None:
            self._output.limit_unsent(MAX_UNSENT_BYTES)
            self._sending = asyncio.get_running_loop().create_task(self._send())
        self._wake(stream_id)
        return stream

    def _wake(self, stream_id: int) -> None:
        """Let a stream send its frames, in turns, and drop it when it is done."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if stream.has_frame and not self._is_closed:
            self._turns.add(stream)
            self._ready.set()
        if stream.is_done or self._is_closed:
            self._turns.remove(stream)
            self._streams.pop(stream_id, None)

    def receive(self, message: bytes) -> None:
        """Take a frame of the agent. Raises Violation for what is no frame; frames of streams that are over are
        ignored."""
        stream_id, kind, payload = frames.decode(message)
        if (stream := self._streams.get(stream_id)) is not None:
            if kind is Kind.DATA:
                pending.add(BYTES, "from_job", len(payload))
            stream.receive(kind, payload)
            self._wake(stream_id)

    def close(self) -> None:
        """End all streams: the agent's connection is gone."""
        self._is_closed = True
        for stream_id, stream in list(self._streams.items()):
            stream.lose(Reason.AGENT_LOST, LOST)
            self._wake(stream_id)
        if self._sending is not None:
            self._sending.cancel()

    async def _send(self) -> None:
        while True:
            await self._ready.wait()
            await self._output.drained()
            try:
                frame = self._turns.next_frame()
            except IndexError:
                self._ready.clear()
                continue
            self._output.send_bytes(frame)
            if size := frames.data_bytes(frame):
                pending.add(BYTES, "to_job", size)
            self._wake(int.from_bytes(frame[:4], "big"))


class AgentRegistry:
    """The agents of this web process, by node."""

    def __init__(self) -> None:
        self._agents: dict[int, AgentStreams] = {}

    def connect(self, node_id: int, agent: AgentStreams) -> None:
        """Add an agent. An older connection of the same node keeps its streams until it ends."""
        self._agents[node_id] = agent

    def disconnect(self, agent: AgentStreams) -> None:
        """Remove an agent and end its streams."""
        for node_id in [node_id for node_id, current in self._agents.items() if current is agent]:
            del self._agents[node_id]
        agent.close()

    def open_streams(self) -> int:
        """Return the number of streams over these agents' connections."""
        return sum(map(len, self._agents.values()))

    def get(self, node_id: int) -> AgentStreams | None:
        return self._agents.get(node_id)

    def nodes(self) -> list[int]:
        """Return the nodes whose agents can carry streams."""
        return [node_id for node_id, agent in self._agents.items() if agent.can_stream]


registry = AgentRegistry()
