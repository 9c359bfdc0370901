"""The parts of Daphne, Twisted, Channels and Django on which the web server relies, and the rule that no other module
relies on private parts of a library."""

import ast
import asyncio
import importlib
import inspect
import json
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from channels.consumer import AsyncConsumer
from daphne import cli, http_protocol, server, ws_protocol
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from twisted.internet import reactor, tcp
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.web import http

from gpusched.lib.web import connections, daphne
from tests.server_source import APPS, ROOT, server_files

# Overridden or called by name: a missing one would remove a limit without an error.
METHODS: list[tuple[Any, str, list[str]]] = [
    (server.Server, "create_application", ["self", "protocol", "scope"]),
    (server.Server, "listen_success", ["self", "port"]),
    (server.Server, "handle_reply", ["self", "protocol", "message"]),
    (server.Server, "kill_all_applications", ["self"]),
    (ws_protocol.WebSocketProtocol, "sendCloseFrame", ["self", "code", "reasonUtf8", "isReply"]),
    (http_protocol.HTTPFactory, "buildProtocol", ["self", "addr"]),
    (http.HTTPFactory, "log", ["self", "request"]),
    (http.HTTPChannel, "lineReceived", ["self", "line"]),
    (http.HTTPChannel, "lineLengthExceeded", ["self", "line"]),
    (http.HTTPChannel, "allHeadersReceived", ["self"]),
    (http.HTTPChannel, "checkPersistence", ["self", "request", "version"]),
    (http.HTTPChannel, "_respondToBadRequestAndDisconnect", ["self"]),
    (http.HTTPChannel, "forceAbortClient", ["self"]),
    (server.Server, "application_checker", ["self"]),
    (http_protocol.WebRequest, "handle_exception", ["self", "exception"]),
    (http.Request, "gotLength", ["self", "length"]),
    (http.Request, "handleContentChunk", ["self", "data"]),
    (http.Request, "requestReceived", ["self", "command", "path", "version"]),
    (http.Request, "registerProducer", ["self", "producer", "streaming"]),
    (ASGIHandler, "load_middleware", ["self", "is_async"]),
    (ASGIHandler, "handle", ["self", "scope", "receive", "send"]),
    (ASGIHandler, "read_body", ["self", "receive"]),
    (ASGIHandler, "create_request", ["self", "scope", "body_file"]),
    (ASGIHandler, "send_response", ["self", "response", "send"]),
    (AsyncConsumer, "dispatch", ["self", "message"]),
    (tcp.Server, "startWriting", ["self"]),
    (tcp.Server, "stopWriting", ["self"]),
    (tcp.Server, "doWrite", ["self"]),
]  # fmt: skip
# A call of a library's own private method that nothing replaces.
PRIVATE = {("gpusched/lib/web/daphne.py", "_respondToBadRequestAndDisconnect")}
# DRF documents `_request`; the others are the standard library's.
DOCUMENTED = {"_request", "_meta", "_exit", "_replace", "_asdict", "_fields", "_make"}


@pytest.mark.parametrize(("base", "name", "parameters"), METHODS, ids=lambda value: str(value))
def test_library_has_the_method_as_expected(base, name, parameters):
    assert list(inspect.signature(getattr(base, name)).parameters) == parameters


def test_library_has_the_attributes_as_expected():
    assert cli.CommandLineInterface.server_class in (server.Server, daphne.WebServer)
    assert "self.server_class(" in inspect.getsource(cli.CommandLineInterface.run)
    assert "listen(self.http_factory)" in inspect.getsource(server.Server.run)
    assert tcp.Port.transport is tcp.Server
    assert (http.HTTPChannel.totalHeadersSize, http.HTTPChannel.MAX_LENGTH) == (16384, 16384)
    assert "parsePOSTFormSubmission" in inspect.signature(http.Request).parameters


@pytest.fixture
def web(monkeypatch):
    """A server that never listens."""

    async def application(scope: Any, receive: Any, send: Any) -> None: ...

    created = daphne.WebServer(application, endpoints=["tcp:0"])
    created.connections = {}
    clock = Clock()
    monkeypatch.setattr(daphne, "reactor", clock)
    created.http_factory.reactor = clock
    created.http_factory = http_protocol.HTTPFactory(created)  # as Daphne's `run`
    return created


def receive(web: daphne.WebServer, data: bytes) -> StringTransport:
    channel, transport = web.http_factory.buildProtocol(None), StringTransport()
    channel.makeConnection(transport)
    channel.dataReceived(data)
    return transport


@pytest.mark.parametrize(
    ("head", "status"),
    [("GET nonsense", 400), (f"GET /{'x' * 17_000}", 414), (f"GET / HTTP/1.1\r\nA: {'x' * 17_000}", 431)],
)
def test_bad_head_is_answered_with_a_problem(web, head, status):
    answer = receive(web, f"{head}\r\n\r\n".encode()).value()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["status"] == status


def test_too_large_body_is_refused_by_its_length(web):
    answer = receive(web, b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\n").value()
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_upload_has_the_limit_of_its_address(web, monkeypatch):
    monkeypatch.setattr(settings, "UPLOAD_MAX_BYTES", {"/api/v1/tasks": 3 << 20})
    head = "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    assert b"3 MiB" in receive(web, (head % ("/api/v1/tasks?endpoint=a", (3 << 20) + 1)).encode()).value()
    assert receive(web, (head % ("/api/v1/tasks?endpoint=a", 3 << 20)).encode()).value() == b""
    assert receive(web, (head % ("/api/v1/jobs", limit)).encode()).value() == b""
    assert b" 413 " in receive(web, (head % ("/api/v1/jobs?a=/api/v1/tasks", limit + 1)).encode()).value()


async def test_answer_that_fails_after_its_beginning_ends_only_its_own_connection(web, monkeypatch):
    """Daphne answers it again, which raises: the client waits for the rest, and Daphne, which then checks no connection
    any more, keeps all of them in memory."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise OSError("the disk fails")

    web.application = application
    monkeypatch.setattr(server, "reactor", clock := Clock())
    transport = receive(web, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    [link] = web.connections.values()
    await asyncio.wait([link["application_instance"]])
    web.application_checker()
    assert transport.value().endswith(b"part")
    assert (transport.disconnected, len(clock.getDelayedCalls())) == (True, 1)


def test_listening_port_creates_our_connections(web):
    port = SimpleNamespace(transport=tcp.Server)
    web.listen_success(port)
    assert port.transport is daphne.Connection


async def test_application_finds_its_connection(web):
    protocol = object()
    web.connections = {protocol: {}}
    scopes: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    web.application = application
    web.create_application(protocol, {"type": "http"})
    await web.connections[protocol]["application_instance"]
    assert connections.connection(scopes[0]) is protocol


@pytest.mark.parametrize(
    ("code", "reason", "frame"),
    [(1013, None, b"\x88\x02\x03\xf5"), (4401, "é" * 99, b"\x88\x7c\x11\x31" + b"\xc3\xa9" * 61)],
    ids=["code", "reason"],
)
async def test_websocket_is_closed_with_the_code_and_the_reason(web, code, reason, frame):
    """Also with a code of servers, for which autobahn raises, and with a reason, which Daphne drops."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": code, "reason": reason})

    web.application = application
    web.ws_factory = ws_protocol.WebSocketFactory(web)
    head = "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    transport = receive(web, f"{head}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())
    for link in web.connections.values():
        if "application_instance" in link:
            await link["application_instance"]
    assert transport.value().endswith(frame)


@pytest.mark.parametrize("state", ["STATE_CLOSING", "STATE_CLOSED"])
async def test_websocket_that_is_closing_already_can_be_closed_again(web, state):
    """A web process that stops closes its sockets, while consumers close them for an outage of the database."""
    protocol = ws_protocol.WebSocketProtocol()
    protocol.state = getattr(protocol, state)
    web.connections = {protocol: {}}
    await web.handle_reply(protocol, {"type": "websocket.close", "code": 1013})


async def test_connection_writes_in_the_same_turn_and_leaves_the_rest_to_the_reactor(monkeypatch):
    """The kernel takes no more than its buffers hold."""
    ours, theirs = socket.socketpair()
    waiting: list[Any] = []
    monkeypatch.setattr(tcp.Connection, "startWriting", lambda self: waiting.append(self))
    monkeypatch.setattr(tcp.Connection, "stopWriting", lambda _: None)
    ours.setblocking(False)
    port: Any = SimpleNamespace(_realPortNumber=0)
    protocol: Any = Protocol()
    connection = daphne.Connection(ours, protocol, ("", 0), port, 1, reactor)
    connection.write(b"a")
    connection.write(b"b")
    assert not waiting
    await asyncio.sleep(0)
    assert (theirs.recv(10), waiting) == (b"ab", [])
    connection.write(b"x" * (8 << 20))
    await asyncio.sleep(0)
    assert waiting == [connection]
    ours.close()
    theirs.close()


def test_no_module_reads_private_names_of_a_library():
    used = set()
    for file in server_files():
        nodes = [node for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.Attribute)]
        private = {(node.attr, is_own(node)) for node in nodes if node.attr.startswith("_") and node.attr[-1] != "_"}
        own = {name for name, is_ours in private if is_ours}
        used |= {(file, name) for name, _ in private if name not in own | DOCUMENTED}
    assert used == set()


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_no_other_class_overrides_or_calls_private_names_of_a_library():
    used = set()
    for file in server_files():
        if file.endswith("__main__.py") or "sso" in file or "/management/" in file:
            continue  # allauth is loaded only where single sign-on is configured
        module = importlib.import_module(file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        for tree in ast.parse((ROOT / file).read_text()).body:
            if isinstance(tree, ast.ClassDef):
                used |= {(file, name) for name in private_names(getattr(module, tree.name), tree)}
    assert used == PRIVATE


def private_names(cls: type, tree: ast.ClassDef) -> set[str]:
    """Return names that the body of a class defines or uses, and that a library's base class has."""
    ours = (*APPS, "builtins", "typing", "enum")
    bases = [base for base in cls.__mro__[1:] if base.__module__.split(".")[0] not in ours]
    private = {name for base in bases for name in vars(base) if name.startswith("_") and not name.endswith("_")}
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return names & private - DOCUMENTED
