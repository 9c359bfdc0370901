"""Answers of other servers in the control plane's place, such as a login page with status 200, count as unreachable."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent import identity as identities
from gpusched.agent.identity import Identity
from tests.agent.conftest import Agent
from tests.agent.control import eventually
from tests.agent.socket_control import SocketControl
from tests.agent.test_join import gpusched_agent

PAGES = [b"<html><title>Log in</title></html>", b"\xff\xfe", b"[" * 100_000, b'{"node_id": "one", "assignments": 5}']


@pytest.fixture
def control() -> Iterator[SocketControl]:
    with SocketControl() as running:
        yield running


@pytest.mark.parametrize("page", PAGES)
def test_join_exits_with_a_sentence_when_a_proxy_page_answers(
    tmp_path: Path, control: SocketControl, page: bytes
) -> None:
    control.page = page
    result = gpusched_agent("join", "--name", "n1", "--data-dir", str(tmp_path), control.url, "j1.token")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert f"gpusched-agent: {control.url} did not answer like a gpusched server" in result.stderr


@pytest.mark.parametrize("has_socket", [True, False])
def test_agent_retries_until_the_server_answers_instead_of_a_page(
    agent: Agent, control: SocketControl, tmp_path: Path, has_socket: bool
) -> None:
    """A41. Over a WebSocket and over HTTP. The job runs on meanwhile, and once."""
    control.has_socket = has_socket
    key = control.run("sh", "-c", f"echo ran >> {tmp_path}/ran; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    with (tmp_path / "log").open("wb") as log:
        process = agent.start(stderr=log.fileno())
    eventually((tmp_path / "ran").exists, 20, "the job")
    control.page = PAGES[0]
    sentence = f"{control.url} did not answer like a gpusched server"
    eventually(lambda: sentence in (tmp_path / "log").read_text(), 20, "the sentence")
    (tmp_path / "go").touch()
    control.page = b""
    assert control.end_of(key).exit_code == 0
    text = (tmp_path / "log").read_text()
    assert process.poll() is None and "Traceback" not in text and text.count(sentence) <= 3
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_agent_that_has_not_joined_waits_until_the_server_answers(
    agent: Agent, control: SocketControl, tmp_path: Path
) -> None:
    control.page = PAGES[0]
    with (tmp_path / "log").open("wb") as log:
        agent.start(stderr=log.fileno())
    eventually(lambda: "did not answer like a gpusched server" in (tmp_path / "log").read_text(), 20, "the sentence")
    control.page = b""
    eventually(lambda: control.syncs, 20, "the first message")
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_agent_reaches_the_server_on_its_machine_without_a_proxy(
    agent: Agent, control: SocketControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a WebSocket, and for the log: a proxy would not lead back, and get the credential. Nothing listens at this one."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    key = control.run("echo", "ran")
    agent.start()
    assert control.end_of(key).exit_code == 0
    eventually(lambda: control.logs.get(key) == b"ran\n", 20, "the log")


def test_proxy_that_cannot_be_used_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first start, and at that of a node that has joined, which systemd repeats for ever."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    sentence = "the proxy in ALL_PROXY, HTTP_PROXY or HTTPS_PROXY cannot be used: "
    node = tmp_path / "nodes" / "n1"
    identities.save(node, Identity("n1", "key", url="http://head:8000", node_id=1, credential="n1.secret"))
    for words in (
        ("join", "--name", "n1", "--data-dir", str(tmp_path), "http://head:8000", "j1.token"),
        ("run", "--name", "n1", "--data-dir", str(tmp_path)),
    ):
        result = gpusched_agent(*words)
        assert result.returncode == 1 and "Traceback" not in result.stderr
        assert f"gpusched-agent: {sentence}" in result.stderr
    assert sentence in gpusched_agent("doctor", "--data-dir", str(tmp_path)).stdout
