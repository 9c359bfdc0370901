"""Hostile messages of pages and agents over a connected WebSocket, and what must not come of them (A55): they
are answered or closed with a documented code, nothing of them stays, and their neighbours notice nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import hypothesis
import msgspec
import pytest
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.conf import settings
from django.db import connections
from hypothesis import given
from hypothesis import strategies as st

import nodes.agents.hub
import nodes.agents.websocket
from frontend.live import hub as hubs
from gpusched.asgi import application
from gpusched.lib.bus.listener import Listener
from gpusched.protocol.agent_messages import Sync
from gpusched.protocol.states import NodeIntent
from jobs.actions import job_actions
from nodes.agents.hub import AgentHub
from nodes.health import cordon
from tests.api.hostile import is_whole
from tests.api.hostile_agents import Fleet, fleet, impersonations, of_others, syncs
from tests.api.mutations import NO_JSON, encoded, mutated
from tests.factories import identity_for, make_member, make_tenant, make_user, now
from tests.frontend.page import Page, cookie_of, live_hub

TIMEOUT_SECONDS = 30.0
LAST = 987_654
# As docs/live.md and docs/rest.md have them.
CODES = {4400, 4401, 4413}
Message = str | bytes
db = sync_to_async


def _same(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def texts(valid: st.SearchStrategy[bytes], most_bytes: int) -> st.SearchStrategy[list[Message]]:
    """A few messages, as text or as bytes, nearly valid; then perhaps some that are nothing."""
    near: st.SearchStrategy[Message] = st.one_of(valid.map(bytes.decode), valid)
    odd: st.SearchStrategy[Message] = st.one_of(
        st.sampled_from(NO_JSON), st.binary(max_size=50), st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
        st.sampled_from(["x" * (most_bytes + 1), b"\x00" * (most_bytes + 1), "", b""]),
    )  # fmt: skip
    return st.tuples(st.lists(near, min_size=1, max_size=5), st.lists(odd, max_size=2)).map(
        lambda both: [*both[0], *both[1]]
    )


def wishes() -> st.SearchStrategy[list[Message]]:
    """A message of a page."""
    topics = ["overview", "nodes", "job:1", "queue:0-5?sort=-gpus", "node:n2"]
    valid = {"subscribe": topics, "fresh": ["nodes"], "seen": "2030-01-01T00:00:00Z"}
    more = ("job:" + "9" * 40, "queue:9-1", "queue:0-999999", "jobs:\x00", "node:", topics * 20, "mine", "job:-1")
    return texts(mutated(valid, more), 64 << 10)


def reports(at: Fleet) -> st.SearchStrategy[list[Message]]:
    """A message of an agent."""
    return texts(syncs(at), 4 << 20)


@dataclass
class Socket:
    """A connection and the messages that it received."""

    link: WebsocketCommunicator
    heard: list[Any] = field(default_factory=list)
    code: int | None = None

    async def say(self, message: Message) -> None:
        """Send as Daphne does, also empty messages."""
        kind = "text" if isinstance(message, str) else "bytes"
        await self.link.send_input({"type": "websocket.receive", kind: message})

    async def listen(self, seconds: float) -> bool:
        """Return the next message, or None after that time."""
        try:
            answer = await asyncio.wait_for(self.link.output_queue.get(), seconds)
        except TimeoutError:
            assert not self.link.future.done(), "the consumer has died"
            return False
        if answer["type"] == "websocket.close":
            self.code = answer["code"]
        else:
            message = json.loads(answer["text"])
            self.heard += message if isinstance(message, list) else [message]
        return True

    async def attack(self, messages: Sequence[Message], last: str, has_answer: Any) -> None:
        """Send all, then a valid message: it is answered, or the connection was closed with a code of ours."""
        for message in [*messages, last]:
            await self.say(message)
            while self.code is None and await self.listen(0.001):
                pass
            if self.code is not None:
                break
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.code is None and not any(map(has_answer, self.heard)):
                await self.listen(1.0)
                if (
                    self.heard and "alive" in self.heard[-1]
                ):  # who has answered it once gets no more until it does again
                    await self.say(json.dumps({"seen": self.heard[-1]["alive"]}))
        assert self.code is None or self.code in CODES, self.code
        await self.link.disconnect(timeout=TIMEOUT_SECONDS)


async def connected(path: str, headers: list[tuple[bytes, bytes]]) -> Socket | None:
    """Return None if the handshake was refused."""
    link = WebsocketCommunicator(application, path, headers=[(b"host", b"localhost"), *headers])
    is_connected, _ = await link.connect(timeout=TIMEOUT_SECONDS)
    return Socket(link) if is_connected else None


async def until_closed(socket: Socket) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while socket.code is None:
            await socket.listen(1.0)
    await socket.link.disconnect(timeout=TIMEOUT_SECONDS)


async def until(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def attack_live_feed(messages: Sequence[Message], cookie: str, neighbour: str, note: str) -> None:
    """`note`: what a neighbour is to read of node n2 afterwards."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hubs, "ALIVE_SECONDS", 0.05)
        async with live_hub(patched) as hub:
            page = await Page(neighbour, ["nodes"]).connect()
            await page.until(lambda: "nodes" in page.rows)
            existing = set(hub._clients)
            origin = [(b"origin", b"http://localhost")]
            socket = await connected(
                "/ws/live/", [*origin, (b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie}".encode())]
            )
            assert socket is not None
            last = json.dumps({"subscribe": ["tenants"], "fresh": ["tenants"]})
            await socket.attack(
                messages, last, lambda answer: answer.get("topic") == "tenants" and "snapshot" in answer
            )
            assert hub._clients == existing
            await until(lambda: {topic for topic, _ in hub._rows} <= {"nodes"} >= set(hub._loaded_at))
            await db(cordon.set_intent)("n2", NodeIntent.CORDONED, note)
            await page.until(lambda: page.rows["nodes"]["n2"]["intent_note"] == note)
            await page.leave()
            assert not hub._clients
        await db(connections.close_all)()


async def knock_as_page(headers: dict[str, str], cookie: str) -> int | None:
    """The code with which it is closed; None: the handshake was refused."""
    values = {
        **headers,
        **({"cookie": f"{settings.SESSION_COOKIE_NAME}={cookie}"} if headers.get("cookie") == "good" else {}),
    }
    with pytest.MonkeyPatch.context() as patched:
        async with live_hub(patched) as hub:
            socket = await connected("/ws/live/", [(name.encode(), value.encode()) for name, value in values.items()])
            if socket is not None:
                await until_closed(socket)
            assert not hub._clients
        await db(connections.close_all)()
    return socket.code if socket else None


def try_live_feed(examples: int) -> None:
    """So many sequences of messages; the same each time, and not shrunk: one that fails waits in vain at each step."""
    fleet()
    member, other = (make_member(make_tenant(name)) for name in ("one", "two"))
    cookies = cookie_of(member), cookie_of(other)
    notes = count()

    @_same(examples)
    @given(wishes())
    def holds(messages: list[Message]) -> None:
        asyncio.run(attack_live_feed(messages, *cookies, f"note {next(notes)}"))

    holds()


@asynccontextmanager
async def agent_hub() -> AsyncIterator[AgentHub]:
    """Yield a server in this event loop, and stop it."""
    doorbell = Listener()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nodes.agents.hub, "listener", doorbell)
        created = AgentHub()
        patched.setattr(nodes.agents.websocket, "hub", created)
        try:
            yield created
        finally:
            tasks = [*created._tasks, *([doorbell._task] if doorbell._task else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for pool in (created._messages, created._pushes):
                await asyncio.wrap_future(pool.submit(connections.close_all))
                pool.shutdown()
            await db(connections.close_all)()


def plain(at: str, seq: int) -> str:
    """Return the message that a well-behaved agent sends each second."""
    return msgspec.json.encode(Sync(seq=seq, at=now(), boot_id="boot-1", held=[at], running=[at])).decode()


async def attack_agents_socket(messages: Sequence[Message], at: Fleet) -> None:
    async with agent_hub() as hub:
        neighbour = await connected("/ws/agent/", [_credential(at.other.credential)])
        assert neighbour is not None
        await _is_answered(neighbour, plain(at.theirs, 1), 1)
        previous, links = await db(of_others)(at.agent.id), dict(hub._links)
        socket = await connected("/ws/agent/", [_credential(at.agent.credential)])
        assert socket is not None
        await socket.attack(messages, plain(at.mine, LAST), lambda answer: answer["seq"] == LAST)
        assert (hub._links, set(hub._sent_runs)) == (links, set(links))
        await _is_answered(neighbour, plain(at.theirs, 2), 2)
        assert _but_time(await db(of_others)(at.agent.id)) == _but_time(previous)
        await db(is_whole)()
        await neighbour.link.disconnect(timeout=TIMEOUT_SECONDS)
        assert not hub._links


async def knock_as_agent(header: str) -> int | None:
    async with agent_hub() as hub:
        socket = await connected("/ws/agent/", [(b"authorization", header.encode("latin-1"))])
        assert socket is not None
        await until_closed(socket)
        assert not hub._links
        return socket.code


def try_agents_socket(examples: int) -> None:
    at = fleet()
    asyncio.run(attack_agents_socket([encoded(operation) for operation in impersonations(at)], at))

    @_same(examples)
    @given(reports(at))
    def holds(messages: list[Message]) -> None:
        asyncio.run(attack_agents_socket(messages, at))

    holds()
    asyncio.run(is_told_to_stop(at))


async def is_told_to_stop(at: Fleet) -> None:
    """The neighbour's last message: what is pushed to it."""
    async with agent_hub():
        neighbour = await connected("/ws/agent/", [_credential(at.other.credential)])
        assert neighbour is not None
        await _is_answered(neighbour, plain(at.theirs, 3), 3)
        root = await db(identity_for)(await db(make_user)("who-cancels", admin=True))
        await db(job_actions.cancel)(int(at.theirs.split(".")[0]), root)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not any(order["action"] == "stop" for answer in neighbour.heard for order in answer["assignments"]):
                await neighbour.listen(1.0)
        await neighbour.link.disconnect(timeout=TIMEOUT_SECONDS)


async def _is_answered(socket: Socket, message: str, seq: int) -> None:
    await socket.say(message)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not any(answer["seq"] == seq for answer in socket.heard):
            await socket.listen(1.0)
            assert socket.code is None


def _credential(text: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {text}".encode()


def _but_time(result: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The neighbour lives: when it was last heard changes."""
    nodes = [{name: row[name] for name in row if not name.endswith(("_at", "_seconds"))} for row in result["nodes"]]
    return {**result, "nodes": nodes}
