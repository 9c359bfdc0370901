"""Several addresses of one control plane: which calls go to the next one, and what errors name (A82)."""

import asyncio
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.cli import main as cli
from gpusched.client import AsyncClient, Client, Invalid, Unreachable
from gpusched.client.config import resolve, write_file
from gpusched.client.streams import open_stream
from gpusched.client.transport import retries
from gpusched.protocol.addresses import Addresses
from gpusched.watch.booking import ControlPlane, NotSent
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, acted, job, problem, sequence

BUSY = problem(503, "starting", "the server starts")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def other() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


@pytest.fixture
def closed() -> str:
    """The address of a server that no longer runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_client_stays_with_the_address_that_answers(server: FakeServer, other: FakeServer, closed: str) -> None:
    """A82: blocking and asynchronous."""
    for fake in (server, other):
        fake.on("GET", "/jobs/42", Answer(200, job()))
    with Client(f"{closed},{server.url}/, {other.url}") as client:
        for _ in range(3):
            assert client.get(42).id == 42

    async def scenario() -> None:
        async with AsyncClient(f"{closed},{server.url}") as client:
            assert (await client.get(42)).id == 42

    asyncio.run(scenario())
    assert len(server.requests) == 4
    assert not other.requests


@pytest.mark.parametrize("failure", [Answer(0), Answer(502), Answer(504), BUSY])
def test_submit_goes_to_the_next_address_with_the_same_key(
    server: FakeServer, other: FakeServer, failure: Answer
) -> None:
    """A03, A82: whether or not the first head carried it out, one job comes of it."""
    server.on("POST", "/jobs", failure)
    other.on("POST", "/jobs", acted())
    with Client(f"{server.url},{other.url}") as client:
        assert client.submit(["true"]).id == 42
    keys = [request.headers["idempotency-key"] for request in (*server.requests, *other.requests)]
    assert len(keys) == 2
    assert len(set(keys)) == 1


@pytest.mark.parametrize("failure", [Answer(0), BUSY])
def test_call_that_must_not_be_repeated_is_sent_to_one_address(
    server: FakeServer, other: FakeServer, failure: Answer
) -> None:
    """A82: and the next call goes to the other one."""
    server.default = failure
    other.on("GET", "/jobs/42", Answer(200, job()))
    with Client(f"{server.url},{other.url}") as client:
        with pytest.raises(Unreachable):
            client.delete_secret("token", tenant="nlp")
        assert not other.requests
        assert client.get(42).id == 42
    assert len(server.requests) == 1


def test_call_that_was_not_sent_goes_to_the_next_address(other: FakeServer, closed: str) -> None:
    other.default = Answer(204, b"")
    with Client(f"{closed},{other.url}") as client:
        client.delete_secret("token", tenant="nlp")
    assert len(other.requests) == 1


def test_error_tells_of_a_head_that_may_have_accepted_the_submit(server: FakeServer, other: FakeServer) -> None:
    """The answer of the first head is lost. The second one has not started yet, and has done nothing."""
    server.on("POST", "/jobs", Answer(0))
    other.on("POST", "/jobs", BUSY)
    with Client(f"{server.url},{other.url}", patience_seconds=0) as client, pytest.raises(Unreachable) as caught:
        client.submit(["true"])
    assert "may have carried out" in str(caught.value)


def test_error_names_every_address(closed: str) -> None:
    """A82: the back-off is over the whole list."""
    other = closed.replace("127.0.0.1", "localhost")
    with Client(f"{closed},{other}", patience_seconds=0) as client, pytest.raises(Unreachable) as caught:
        client.get(42)
    assert closed in str(caught.value)
    assert other in str(caught.value)


def test_answer_of_one_head_counts_more_than_the_silence_of_another(server: FakeServer, closed: str) -> None:
    server.on("GET", "/jobs/42", sequence(BUSY, Answer(200, job())))
    with Client(f"{server.url},{closed}") as client:
        assert client.get(42).id == 42
    server.on("GET", "/jobs/42", BUSY)
    with Client(f"{server.url},{closed}", patience_seconds=0) as client, pytest.raises(Unreachable) as caught:
        client.get(42)
    assert caught.value.status == 503


def test_other_refusals_stay_with_the_address(server: FakeServer, other: FakeServer) -> None:
    with Client(f"{server.url},{other.url}") as client:
        for _ in range(2):
            with pytest.raises(Exception, match="there is no such thing"):
                client.get(42)
    assert len(server.requests) == 2
    assert not other.requests


def test_stream_names_every_address(closed: str) -> None:
    other = closed.replace("127.0.0.1", "localhost")
    with Client(f"{closed},{other}") as client, pytest.raises(Unreachable) as caught:
        asyncio.run(open_stream(client, 42, port=80))
    assert closed in str(caught.value)
    assert other in str(caught.value)


def test_mcp_sends_each_message_once(
    other: FakeServer, closed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A82: to the next address only if the first cannot be reached."""
    other.routes["POST", "/mcp"] = sequence(Answer(0), Answer(200, {"jsonrpc": "2.0", "id": 2, "result": {}}))
    messages = [{"jsonrpc": "2.0", "id": number, "method": "ping"} for number in (1, 2)]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(message) + "\n" for message in messages)))
    monkeypatch.setattr("sys.argv", ["gpusched", "--url", f"{closed},{other.url}", "mcp"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (0, None)
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert "does not answer" in first["error"]["message"]
    assert second["result"] == {}
    assert len(other.requests) == 2


def test_mcp_waits_for_a_server_that_restarts(
    closed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An update of the server failed the calls of agents, while all other commands waited for it."""
    restarted: list[FakeServer] = []

    def restart(seconds: float) -> None:
        restarted.append(FakeServer(int(closed.rpartition(":")[2])))
        restarted[0].default = Answer(200, {"jsonrpc": "2.0", "id": 1, "result": {}})

    monkeypatch.setattr("time.sleep", restart)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n"))
    monkeypatch.setattr("sys.argv", ["gpusched", "--url", closed, "mcp"])
    with pytest.raises(SystemExit):
        cli.main()
    restarted[0].close()
    assert json.loads(capsys.readouterr().out)["result"] == {}


def test_mcp_goes_on_after_a_line_that_is_not_utf8(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.default = Answer(200, {"jsonrpc": "2.0", "id": 2, "result": {}})
    lines = io.BytesIO(b'\xff\n{"jsonrpc": "2.0", "id": 2, "method": "ping"}\n')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(lines, "utf-8"))
    monkeypatch.setattr("sys.argv", ["gpusched", "--url", server.url, "mcp"])
    with pytest.raises(SystemExit):
        cli.main()
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["error"]["message"] == "the line is not JSON"
    assert second["result"] == {}


def test_watch_books_at_the_next_address(server: FakeServer, other: FakeServer) -> None:
    server.default = BUSY
    other.default = Answer(201, {"id": 7})
    plane = ControlPlane(resolve(f"{server.url},{other.url}", "t", environ={"GPUSCHED_CONFIG": "/nonexistent"}))
    plane.book({}, "key")
    assert len(other.requests) == len(server.requests) == 1
    other.default = BUSY
    with pytest.raises(NotSent, match=other.url):
        plane.book({}, "key")


def test_stored_token_is_sent_to_the_servers_that_it_is_for_only(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    write_file(file, {"url": "https://a, https://b/", "token": "f.1"})
    env = {"GPUSCHED_CONFIG": str(file)}
    assert resolve(environ=env).url == "https://a,https://b"
    assert resolve(environ=env).token == resolve("https://b", environ=env).token == "f.1"
    assert resolve("https://b,https://c", environ=env).token is None


@pytest.mark.parametrize("text", ["https://a,http://b", "https://a,b", ","])
def test_invalid_list_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        resolve(text, environ={"GPUSCHED_CONFIG": "/nonexistent"})


def test_thread_that_fails_late_does_not_undo_the_move_of_another() -> None:
    addresses = Addresses("http://a,http://b")
    addresses.move_on("http://a")
    addresses.move_on("http://a")
    assert addresses.current == "http://b"


def test_join_command_names_all_heads(server: FakeServer) -> None:
    """A node that joined by the address of the head that answered lost the control plane together with it."""
    command = f"gpusched-agent join --ca-file ca.crt {server.url} j1.secret"
    server.on("POST", "/nodes/join-tokens", Answer(201, {"token": "j1.secret", "command": command}))
    urls = f"{server.url},http://head2.example"
    shown = call(urls, "node", "join-token")
    assert (shown.stdout, shown.exit_code) == ("j1.secret\n", 0)
    assert f"gpusched-agent join --ca-file ca.crt {urls} j1.secret\n" in shown.stderr
    assert json.loads(call(urls, "node", "join-token", "-o", "json").stdout)["command"].split()[-2] == urls
    local = call(server.url, "node", "join-token").stderr
    assert command in local and "from another machine" in local
