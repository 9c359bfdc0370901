"""The WebSocket of a page: whoever is logged in says which topics it wants (docs/live.md)."""

import logging

import msgspec

from frontend.live import hub as hubs
from frontend.live.outbox import Outbox
from gpusched.lib.web.websockets import HubSocket
from tenants.auth.page_access import Session

logger = logging.getLogger(__name__)
MAX_BYTES = 64 << 10
BAD_MESSAGE, TOO_LARGE = 4400, 4413


class Wanted(msgspec.Struct):
    """All topics wanted from now on, or the answer to an `alive`."""

    subscribe: list[str] | None = None
    fresh: list[str] = []
    seen: str | None = None

    def __post_init__(self) -> None:
        if self.subscribe is None and self.seen is None:
            raise ValueError("has neither `subscribe` nor `seen`")


_decode = msgspec.json.Decoder(Wanted).decode


class LiveConsumer(HubSocket):
    """Hands wishes to the hub; what comes back goes through the page's outbox."""

    client: hubs.Client | None = None

    async def connect(self) -> None:
        await self.accept()
        user = self.scope["user"]
        key = self.scope["session"].session_key
        client = None
        if user.is_authenticated and key:
            client = hubs.Client(Session(user.pk, key, user.password), Outbox(self.say, self._refresh), self.close)
        refusal = hubs.NOT_AUTHENTICATED if client is None else await hubs.hub.join(client)
        # Accepted first: a refused handshake cannot say why, a close code can.
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
            wanted = _decode(raw)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            logger.info("a page sent an invalid message: %s", error)
            await self.close(code=BAD_MESSAGE)
            return
        if self.client is None:
            return
        if wanted.seen is not None:
            self.client.outbox.seen()
        if wanted.subscribe is not None:
            hubs.hub.subscribe(self.client, wanted.subscribe, wanted.fresh)

    def _refresh(self, topics: set[str]) -> None:
        if self.client is not None:
            hubs.hub.refresh(self.client, topics)
