"""The WebSocket of a page: the page subscribes to topics and receives their rows (docs/live.md)."""

import logging

import msgspec

from frontend.live import hub as hubs
from frontend.live.outbox import Outbox
from gpusched.lib.web.websockets import HubSocket
from tenants.auth.page_access import Session

logger = logging.getLogger(__name__)
MAX_BYTES = 64 << 10
BAD_MESSAGE, TOO_LARGE = 4400, 4413


class ClientMessage(msgspec.Struct):
    """A message from the page: its full set of topics, or the answer to an `alive`."""

    subscribe: list[str] | None = None
    fresh: list[str] = []
    seen: str | None = None

    def __post_init__(self) -> None:
        if self.subscribe is None and self.seen is None:
            raise ValueError("has neither `subscribe` nor `seen`")


_decode = msgspec.json.Decoder(ClientMessage).decode


class LiveConsumer(HubSocket):
    """Pass subscriptions to the hub. Rows return through the outbox of the page."""

    client: hubs.Client | None = None

    async def connect(self) -> None:
        await self.accept()
        user = self.scope["user"]
        key = self.scope["session"].session_key
        client = None
        if user.is_authenticated and key:
            outbox = Outbox(self.send_text, self._refresh)
            client = hubs.Client(Session(user.pk, key, user.password), outbox, self.close)
        refusal = hubs.NOT_AUTHENTICATED if client is None else await hubs.hub.join(client)
        # Accept first: a rejected handshake carries no reason, a close code does.
        if client is None or refusal is not None:
            await self.close(code=refusal)
            return
        self.client = client

    async def disconnect(self, code: int) -> None:
        if self.client is not None:
            hubs.hub.leave(self.client)
            self.client.outbox.close()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        raw = text_data.encode() if text_data is not None else bytes_data or b""
        if len(raw) > MAX_BYTES:
            await self.close(code=TOO_LARGE)
            return
        try:
            message = _decode(raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            logger.info("a page sent an invalid message: %s", error)
            await self.close(code=BAD_MESSAGE)
            return
        if self.client is None:
            return
        if message.seen is not None:
            self.client.outbox.acknowledge()
        if message.subscribe is not None:
            hubs.hub.subscribe(self.client, message.subscribe, message.fresh)

    def _refresh(self, topics: set[str]) -> None:
        if self.client is not None:
            hubs.hub.refresh(self.client, topics)
