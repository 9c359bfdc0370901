"""Writes on a WebSocket: at once under Daphne, else in order; never on a closed one."""

import asyncio
from functools import partial
from typing import Any

import pytest
from daphne.ws_protocol import WebSocketProtocol
from twisted.internet.testing import StringTransport

from gpusched.lib.web import websockets
from gpusched.lib.web.backpressure import Pace
from gpusched.lib.web.daphne import WebServer
from gpusched.lib.web.websockets import HubSocket, bounded_output


class Wire(WebSocketProtocol):  # type: ignore[misc]
    """Daphne's end of a connection, as far as messages are concerned."""

    def __init__(self) -> None:
        self.state = self.STATE_OPEN
        self.is_aborted = False
        self.transport = StringTransport()
        self.transport.registerProducer(Pace(), True)  # as HTTP leaves it

    def dropConnection(self, abort: bool = False) -> None:  # noqa: N802
        self.is_aborted = abort

    def sendData(self, *_: Any) -> None:  # noqa: N802
        raise AssertionError("it formats a log line for each message: 17 of 18 microseconds")

    @property
    def sent(self) -> list[bytes]:
        """Return the texts of the frames written: a short one begins with two bytes, its kind and its length."""
        unread, texts = self.transport.value(), list[bytes]()
        while unread:
            assert unread[0] == 0x81
            end = 2 + unread[1]
            texts.append(unread[2:end])
            unread = unread[end:]
        return texts


async def voice(send: Any) -> HubSocket:
    """A consumer that may speak."""
    scopes: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    async def receive() -> dict[str, Any]:
        raise AssertionError("no message is expected")

    await bounded_output(application)({"type": "websocket"}, receive, send)
    consumer = HubSocket()
    consumer.scope = scopes[0]
    return consumer


@pytest.fixture
async def daphne(monkeypatch):
    """Create an application for a connection as Daphne does: a wire with a consumer."""
    created: list[HubSocket] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        consumer = HubSocket()
        consumer.scope = scope
        created.append(consumer)

    server, wire = WebServer(bounded_output(application), endpoints=["tcp:0"]), Wire()
    server.connections = {wire: {}}
    server.create_application(wire, {"type": "websocket"})
    await server.connections[wire]["application_instance"]
    return wire, created[0]


async def test_daphne_socket_writes_at_once(daphne):
    wire, consumer = daphne
    consumer.send_text('{"a":"é"}')
    consumer.send_text("2")
    assert wire.sent == ['{"a":"é"}'.encode(), b"2"]


@pytest.mark.parametrize("state", ["STATE_CLOSING", "STATE_CLOSED"])
async def test_closed_connection_is_not_written(daphne, state):
    wire, consumer = daphne
    wire.state = getattr(wire, state)
    consumer.send_text("1")
    assert wire.sent == []


async def test_connection_that_reads_nothing_is_closed(daphne, monkeypatch):
    """Else it would stand in the server's memory. Who takes it, however late, hears all."""
    wire, consumer = daphne
    monkeypatch.setattr(websockets, "MAX_UNSENT", 250)
    for _ in range(3):
        wire.transport.producer.pauseProducing()
        for _ in range(2):
            consumer.send_text("x" * 100)
        wire.transport.producer.resumeProducing()
        consumer.send_text("x" * 100)
    assert not wire.is_aborted
    wire.transport.producer.pauseProducing()
    for is_too_much in (False, False, True):
        consumer.send_text("x" * 100)
        assert wire.is_aborted is is_too_much


async def test_other_servers_get_messages_in_order():
    """Even if the first is slow."""
    sent: list[str] = []

    async def send(message: Any) -> None:
        await asyncio.sleep(0.05 if message["text"] == "1" else 0)
        sent.append(message["text"])

    consumer = await voice(partial(send))
    for text in "123":
        consumer.send_text(text)
    assert sent == []
    async with asyncio.timeout(10):
        while len(sent) < 3:
            await asyncio.sleep(0.01)
    assert sent == ["1", "2", "3"]
