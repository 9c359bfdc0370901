"""Heads that ask each other for an agent; tests/e2e/test_two_heads.py carries streams between two real ones."""

import asyncio
import contextlib
import http
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from django.core import signing
from websockets.asyncio.server import Server, ServerConnection, serve

from nodes.streams import heads
from nodes.streams.heads import Heads, is_signed, signature
from nodes.streams.peers import HERE

NODE = 7


def url_of(server: Server) -> str:
    return f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


@contextlib.asynccontextmanager
async def head(answer: Callable[[ServerConnection], Awaitable[None]], **options: Any) -> AsyncIterator[str]:
    async with serve(answer, "127.0.0.1", 0, **options) as server:
        yield url_of(server)


async def has_agent(connection: ServerConnection) -> None:
    """Repeat each frame."""
    assert connection.request is not None
    assert connection.request.path == f"/ws/heads/{NODE}"
    assert is_signed(connection.request.headers["Authorization"], NODE)
    await connection.send(HERE)
    async for message in connection:
        await connection.send(message)


async def has_none(connection: ServerConnection) -> None:
    await connection.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == heads.__name__]


def test_signature_is_of_this_node_and_key_and_of_the_last_minutes(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = signature(NODE)
    assert is_signed(signed, NODE)
    assert not is_signed(signed, 8)
    for other in ("", "Head", "Head x:y:z", signed.replace("Head ", "Bearer "), f"Head {signing.dumps(NODE)}"):
        assert not is_signed(other, NODE)
    monkeypatch.setattr(heads, "_SIGNED_SECONDS", -1)
    assert not is_signed(signed, NODE)
    monkeypatch.undo()
    settings.SECRET_KEY = "that of another cluster"
    assert not is_signed(signed, NODE)


async def test_head_with_the_agent_is_found_among_others() -> None:
    async with head(has_none) as first, head(has_agent) as second:
        pipe = await Heads((first, second)).ask(NODE)
        assert pipe is not None
        frames = [bytes([number]) * 60_000 for number in range(50)]
        for frame in frames:
            pipe.send(frame)
        arrived = pipe.messages()
        assert [await anext(arrived) for _ in frames] == frames
        pipe.send(b"last")
        pipe.close()
        pipe.send(b"ignored")
        assert [message async for message in arrived] in ([b"last"], [])
        assert await Heads((first,)).ask(NODE) is None
        assert await Heads(()).ask(NODE) is None


async def test_all_addresses_of_a_name_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster of containers, a name stands for all of them."""

    async def addresses(name: str, port: int, **_: Any) -> list[Any]:
        assert name == "web.example"
        return [(socket.AF_INET, 0, 0, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1", "127.0.0.1")]

    async with head(has_agent) as url:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses)
        pipe = await Heads((url.replace("127.0.0.1", "web.example"),)).ask(NODE)
        assert pipe is not None
        pipe.close()


async def test_head_that_cannot_be_asked_is_left_out_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each stream would wait for it."""
    monkeypatch.setattr(heads, "CONNECT_SECONDS", 0.3)
    asked: list[ServerConnection] = []

    async def hang(connection: ServerConnection) -> None:
        asked.append(connection)
        await connection.wait_closed()

    async with head(hang) as silent, head(has_agent) as url:
        ours = Heads((silent, url))
        for _ in range(3):
            pipe = await ours.ask(NODE)
            assert pipe is not None
            pipe.close()
        assert (len(asked), len(warnings(caplog))) == (1, 1)
        monkeypatch.setattr(heads, "_AWAY_SECONDS", 0.0)
        assert await Heads((silent,)).ask(NODE) is None
        assert len(asked) == 2


async def test_reason_of_a_refusal_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(connection: ServerConnection, _: Any) -> Any:
        return connection.respond(http.HTTPStatus.FORBIDDEN, "")

    async with head(has_agent, process_request=refuse) as url:
        assert await Heads((url,)).ask(NODE) is None
    assert await Heads(("http://none.invalid:8000",)).ask(NODE) is None
    assert "it has another secret key, or another time" in warnings(caplog)[0]
    assert "http://none.invalid:8000 cannot be asked: its name has no address" in warnings(caplog)[1]


async def test_faults_name_each_head_that_cannot_be_asked() -> None:
    async with head(has_none) as url:
        faults = await Heads((url, "http://127.0.0.1:9", "http://none.invalid:8000")).faults()
    assert [fault.partition(": ")[0] for fault in faults] == [
        "http://127.0.0.1:9 (127.0.0.1)",
        "http://none.invalid:8000",
    ]


async def test_broken_connection_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def die(connection: ServerConnection) -> None:
        await connection.send(HERE)
        connection.transport.abort()

    async with head(die) as url:
        pipe = await Heads((url,)).ask(NODE)
        assert pipe is not None
        with pytest.raises(OSError, match="broke"):
            async for _ in pipe.messages():
                pass
        pipe.close()
