"""A page as the server sees it: speaks docs/live.md over the real WebSocket stack and records messages."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from frontend.live import feed, hub
from frontend.live.hub import LiveHub
from gpusched.asgi import application
from gpusched.lib.bus.listener import Listener
from tests.system.page import merge

TIMEOUT_SECONDS = 20.0
# What changes with the clock alone, and so cannot be compared with a load of a moment later.
_CLOCKED = {"oldest_wait_seconds", "p90_wait_seconds", "share", "usage_gpu_hours"}


@asynccontextmanager
async def live_hub(monkeypatch):
    """A hub of this test's event loop, and what ends it."""
    listener = Listener()
    created = LiveHub(listener)
    monkeypatch.setattr(hub, "hub", created)
    try:
        yield created
    finally:
        await created.stop()
        if listener._task is not None:
            listener._task.cancel()
            await asyncio.gather(listener._task, return_exceptions=True)


def cookie_of(user: User) -> str:
    client = Client()
    client.force_login(user)
    return client.cookies[settings.SESSION_COOKIE_NAME].value


class Page:
    """`rows` by topic; `heard` every text message. `answers`: whether it answers `alive`; one that does not is slow."""

    def __init__(self, cookie: str, topics: list[str]) -> None:
        self.cookie = cookie
        self.topics = topics
        self.rows: dict[str, dict[str, Any]] = {}
        self.errors: dict[str, str] = {}
        self.seqs: dict[str, int] = {}
        self.given_up: set[str] = set()  # on this connection
        self.heard: list[str] = []
        self.kinds: list[str] = []
        self.close_code: int | None = None
        self.answers = True
        self.questions = 0  # `alive` messages to which the server wants an answer
        self.all_topics = topics
        self.visible: list[int] | None = None
        self.user_id: int | None = None
        self._news = asyncio.Event()

    async def connect(self) -> "Page":
        headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
        headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={self.cookie}".encode()))
        self.socket = WebsocketCommunicator(application, "/ws/live/", headers=headers)
        self.close_code = None
        self.seqs, self.given_up = {}, set()
        connected, _ = await self.socket.connect(timeout=TIMEOUT_SECONDS)
        assert connected
        self._reader = asyncio.get_running_loop().create_task(self._read())
        await self.subscribe()
        return self

    async def subscribe(self, *current: str) -> None:
        await self.say({"subscribe": self.topics, "fresh": list(current)})

    async def want(self, *topics: str) -> None:
        self.given_up |= set(self.topics) - set(topics)
        self.topics = list(topics)
        await self.subscribe()

    async def say(self, message: object) -> None:
        await self.socket.send_to(text_data=message if isinstance(message, str) else json.dumps(message))

    async def leave(self) -> None:
        self._reader.cancel()
        await self.socket.disconnect(timeout=TIMEOUT_SECONDS)

    async def _read(self) -> None:
        while True:
            message = await self.socket.output_queue.get()
            if message["type"] == "websocket.close":
                self.close_code = message["code"]
            else:
                self.heard.append(message["text"])
                payload = json.loads(message["text"])
                for each in payload if isinstance(payload, list) else [payload]:
                    await self._take(each)
            self._news.set()

    async def _take(self, message: dict[str, Any]) -> None:
        if "alive" in message:
            self.kinds.append("alive")
            self.questions += message.get("answer", False)
            if self.answers and message.get("answer"):
                await self.say({"seen": message["alive"]})
            return
        topic = message["topic"]
        if "error" in message:
            self.errors[topic] = message["error"]
        elif topic in self.topics:
            seq = message["seq"]
            if "snapshot" not in message and seq != self.seqs.get(topic, seq - 1) + 1:
                # Of a topic that was given up and taken up again, messages came in between that were not taken.
                assert topic in self.given_up, "a gap"
                await self.subscribe(topic)
                return
            self.seqs[topic] = seq
            self.kinds.append("snapshot" if "snapshot" in message else "delta")
            if "snapshot" in message:
                self.rows[topic] = message["snapshot"]
            else:
                assert message.keys() & {"set", "patch", "gone"}, "a delta that says nothing"
                self.rows[topic].update(message.get("set", {}))
                for key, changes in message.get("patch", {}).items():
                    merge(self.rows[topic][key], changes)
                for key in message.get("gone", ()):
                    del self.rows[topic][key]

    async def until(self, condition, label: str = "") -> None:
        """Waits for messages until the condition holds."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not condition():
                self._news.clear()
                if not condition():
                    await self._news.wait()

    async def shows(self, topic: str, visible: list[int] | None) -> None:
        """Waits until what the page has of a topic equals a fresh load (A52)."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_SECONDS
        while True:
            self._news.clear()
            current = compared(await sync_to_async(feed.rows)(topic, visible, self.user_id))
            shown = compared(self.rows.get(topic, {}))
            if shown == current:
                return
            if asyncio.get_running_loop().time() > deadline:
                assert shown == current, topic
            # A message may have come during the load: then there is nothing to wait for.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), 0.3)


def compared(value: Any) -> Any:
    """As JSON has it, without what changes with the clock."""
    if isinstance(value, dict):
        return {key: compared(inner) for key, inner in value.items() if key not in _CLOCKED}
    if isinstance(value, list | tuple):
        return [compared(inner) for inner in value]
    return msgspec.json.decode(msgspec.json.encode(value))
