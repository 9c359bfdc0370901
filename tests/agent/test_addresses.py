"""An agent with the addresses of two heads: it goes to the other one, with what it has not reported (A82)."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from websockets.sync.server import ServerConnection, serve

from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.agent.test_join import gpusched_agent


@pytest.fixture
def other() -> Iterator[Control]:
    with Control() as running:
        yield running


def test_agent_goes_to_the_other_head_and_reports_there(agent: Agent, control: Control, other: Control) -> None:
    """A82: within 3 s, with the end of a job and its output; it returns when that head fails as well."""
    key = control.run("sh", "-c", "echo before; sleep 2; echo after; exit 5")
    other.orders = control.orders
    agent.start("--url", f"{control.url},{other.url}")
    control.start_of(key)
    eventually(lambda: control.logs.get(key) == b"before\n", 10, "output at the first head")
    assert not other.syncs
    other.logs[key] = control.logs[key]  # as on shared storage
    control.is_away = True
    eventually(lambda: bool(other.syncs), 3, "a message to the other head")
    assert other.end_of(key).exit_code == 5
    eventually(lambda: other.logs[key] == b"before\nafter\n", 10, "the rest of its output")
    assert key not in control.ended
    stays = len(control.syncs)
    control.is_away = False
    eventually(lambda: len(other.syncs) > 40, 20, "more messages")
    assert len(control.syncs) == stays
    other.is_away = True
    eventually(lambda: len(control.syncs) > stays, 3, "a message to the first head again")


@pytest.mark.parametrize("form", [str.upper, "https://127.0.0.1:9,{}".format])
def test_agent_connects_to_an_address_in_capitals_or_beside_one_of_https(
    agent: Agent, control: Control, form: Callable[[str], str]
) -> None:
    agent.start("--url", form(control.url))
    eventually(lambda: bool(control.syncs), 20, "a message")


class ProbedHead(Control):
    """Answers the probes of load balancers."""

    is_ready = False
    probes = 0

    def upgrade(self, request: BaseHTTPRequestHandler) -> None:
        self.probes += request.path == "/ready?head=true"
        if self.is_ready and request.path == "/ready?head=true":
            request.send_response(200)
            request.send_header("Content-Length", "0")
            request.end_headers()
        else:
            super().upgrade(request)


@contextlib.contextmanager
def head_without_database() -> Iterator[str]:
    """A head whose answers repeat the number of no message, as in an outage. Yield its address."""

    def converse(socket: ServerConnection) -> None:
        for _ in socket:
            socket.send("{}")

    with serve(converse, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"


def test_agent_leaves_a_head_that_has_lost_the_database_once_another_is_ready(agent: Agent, control: Control) -> None:
    """A82: before its node counts as lost, which takes 15 s."""
    joined = gpusched_agent("join", "--data-dir", str(agent.directory), "--name", "node-a", control.url, "j1.token")
    assert joined.returncode == 0
    control.is_away = True
    with ProbedHead() as other, head_without_database() as url:
        agent.start("--url", f"{url},{other.url},{control.url}", environment={"GPUSCHED_JOIN_TOKEN": ""})
        eventually(lambda: other.probes == 2, 20, "two probes")
        assert not other.syncs, "no other head was ready"
        other.is_ready = True
        eventually(lambda: bool(other.syncs), 5, "a message to the other head")
        agent.kill()


def test_agent_joins_at_the_head_that_answers(agent: Agent, control: Control, other: Control) -> None:
    control.is_away = True
    agent.start("--url", f"{control.url},{other.url}")
    eventually(lambda: bool(other.syncs), 10, "a message to the other head")
    assert other.joins and not control.joins


def test_joined_agent_takes_another_list_of_addresses_without_a_token(
    agent: Agent, control: Control, other: Control
) -> None:
    directory = agent.directory
    result = gpusched_agent("join", "--data-dir", str(directory), "--name", "node-a", control.url, "j1.token")
    assert result.returncode == 0
    control.is_away = True
    both = f"{control.url}, {other.url}/"
    agent.start("--url", both, environment={"GPUSCHED_JOIN_TOKEN": ""})
    eventually(lambda: bool(other.syncs), 10, "a message to the other head")
    stored = json.loads((directory / "nodes" / "node-a" / "identity.json").read_text())
    assert stored["url"] == f"{control.url},{other.url}"
    assert not other.joins


def test_failed_join_names_every_address(tmp_path: Path, control: Control) -> None:
    control.is_away = True
    result = gpusched_agent("join", "--data-dir", str(tmp_path), f"{control.url},http://127.0.0.1:1", "j1.token")
    assert result.returncode == 1
    assert f"{control.url} refused node" in result.stderr
    assert "http://127.0.0.1:1 cannot be reached" in result.stderr
