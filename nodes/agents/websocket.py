"""WebSocket of an agent, authenticated by the node's credential. Each text message is a Sync; binary ones are frames of
streams (gpusched/protocol/streams.py), if the agent can."""

import asyncio

import msgspec
from channels.db import database_sync_to_async

from gpusched.lib.api.problems import Problem
from gpusched.lib.web.websockets import TRY_AGAIN_LATER, HubSocket
from gpusched.protocol.agent_messages import BOOT_HEADER, Desired, Sync
from gpusched.protocol.streams import HEADER, HEADER_VALUE, Violation
from nodes.agents.hub import hub
from nodes.inventory import copies, join
from nodes.streams.agents import AgentStreams, registry
from nodes.streams.opening import peers

_decode = msgspec.json.Decoder(Sync).decode
MAX_BYTES = 4 << 20
NOT_AUTHENTICATED, BAD_MESSAGE, COPY, TOO_LARGE = 4401, 4400, 4409, 4413


class AgentConsumer(HubSocket):
    """Pass messages to the hub, which answers through `deliver`."""

    node_id = 0
    authorization = ""
    streams: AgentStreams | None = None
    _closing: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        headers = dict(self.scope["headers"])
        header = headers.get(b"authorization", b"").decode("latin-1")
        boot_id = headers.get(BOOT_HEADER.lower().encode(), b"").decode("latin-1")
        node_id, reason = await database_sync_to_async(_admit)(header, boot_id)
        await self.accept()
        if node_id is None:
            # Accepted first: a rejected handshake carries no reason, a close code does.
            await self.close(code=_code(reason), reason=reason)
            return
        self.node_id, self.authorization = node_id, header
        can_stream = headers.get(HEADER.lower().encode()) == HEADER_VALUE.encode()
        self.streams = AgentStreams(self.scope["output"], can_stream=can_stream)
        hub.start()
        hub.connect(self)
        registry.connect(node_id, self.streams)
        await peers.listen()

    async def disconnect(self, code: int) -> None:
        hub.disconnect(self)
        self._end_streams()

    def _end_streams(self) -> None:
        if self.streams is not None:
            registry.disconnect(self.streams)
            self.streams = None

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if bytes_data is not None and self.streams is not None and self.streams.can_stream:
            await self._receive_frame(self.streams, bytes_data)
            return
        raw = text_data if text_data is not None else bytes_data or b""
        if len(raw) > MAX_BYTES:
            await self.close(code=TOO_LARGE)
            return
        try:
            message = _decode(raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            await self.send(msgspec.json.encode(Desired(error=f"not understood: {error}")).decode())
            await self.close(code=BAD_MESSAGE)
            return
        if self.node_id and not hub.receive(self, message):
            await self.close(code=TRY_AGAIN_LATER)

    async def _receive_frame(self, streams: AgentStreams, frame: bytes) -> None:
        try:
            streams.receive(frame)
        except Violation as error:
            await self.send(msgspec.json.encode(Desired(error=f"not understood: {error}")).decode())
            await self.close(code=BAD_MESSAGE)

    def deliver(self, answer: Desired) -> None:
        """Send an answer. The hub calls it in the event loop."""
        self.send_text(msgspec.json.encode(answer).decode())

    def refuse(self, reason: str) -> None:
        """Close the connection of a node that was removed or is a copy, or whose credential was replaced. Called in
        the event loop."""
        hub.disconnect(self)
        self._end_streams()
        self.node_id = 0
        self._closing = asyncio.get_running_loop().create_task(self.close(code=_code(reason), reason=reason))


def _admit(header: str, boot_id: str) -> tuple[int | None, str]:
    """Return the node that an Authorization header names, or None and the reason. `boot_id` is empty for an agent that
    does not send it: its first message decides whether it is a copy."""
    try:
        node_id = join.authenticate(header)
    except Problem as problem:
        return None, problem.detail
    if node_id is not None and boot_id and copies.is_copy(node_id, boot_id):
        return None, copies.REFUSAL
    return node_id, "this is not a node's credential"


def _code(reason: str) -> int:
    """Return the code to close with. After NOT_AUTHENTICATED an agent uses another credential, or joins again."""
    return COPY if reason == copies.REFUSAL else NOT_AUTHENTICATED
