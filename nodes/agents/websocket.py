"""WebSocket of an agent, authenticated by the node's credential. Each message is a Sync."""

import asyncio

import msgspec
from channels.db import database_sync_to_async

from gpusched.lib.api.problems import Problem
from gpusched.lib.web.websockets import TRY_AGAIN_LATER, HubSocket
from gpusched.protocol.agent_messages import Desired, Sync
from nodes.agents.hub import hub
from nodes.inventory import join

_decode = msgspec.json.Decoder(Sync).decode
MAX_BYTES = 4 << 20
NOT_AUTHENTICATED, BAD_MESSAGE, TOO_LARGE = 4401, 4400, 4413


class AgentConsumer(HubSocket):
    """Pass messages to the hub, which answers through `deliver`."""

    node_id = 0
    _closing: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        headers = dict(self.scope["headers"])
        header = headers.get(b"authorization", b"").decode("latin-1")
        reason = "this is not a node's credential"
        try:
            node_id = await database_sync_to_async(join.authenticate)(header)
        except Problem as problem:
            node_id, reason = None, problem.detail
        await self.accept()
        if node_id is None:
            # Accepted first: a rejected handshake carries no reason, a close code does.
            await self.close(code=NOT_AUTHENTICATED, reason=reason)
            return
        self.node_id = node_id
        hub.start()
        hub.connect(self)

    async def disconnect(self, code: int) -> None:
        hub.disconnect(self)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
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

    def deliver(self, answer: Desired) -> None:
        """Send an answer. The hub calls it in the event loop."""
        self.send_text(msgspec.json.encode(answer).decode())

    def refuse(self, reason: str) -> None:
        """Close the connection of a node that was removed. The hub calls it in the event loop."""
        hub.disconnect(self)
        self.node_id = 0
        self._closing = asyncio.get_running_loop().create_task(self.close(code=NOT_AUTHENTICATED, reason=reason))
