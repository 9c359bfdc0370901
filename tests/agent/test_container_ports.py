"""Streams to ports of programs in containers of a real podman and of a real docker (A69)."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir, socket_dir
from gpusched.protocol.streams import Reason
from tests.agent.conftest import Agent
from tests.agent.control import eventually
from tests.agent.engines import Engine
from tests.agent.socket_control import SocketControl
from tests.agent.test_engines import engine, run
from tests.system.stack import free_port

__all__ = ["engine"]
pytestmark = pytest.mark.e2e
Start = Callable[[str], None]


@pytest.fixture
def control() -> Iterator[SocketControl]:
    with SocketControl() as running:
        yield running


@pytest.fixture
def start(agent: Agent, engine: Engine, tmp_path: Path) -> Start:
    """Start the agent of a node whose containers have this network."""

    def start(network: str) -> None:
        name, command, arguments, _ = engine
        arguments = [network if before == "--network" else word for before, word in zip(["", *arguments], arguments)]  # noqa: B905
        (tmp_path / "agent.toml").write_text(
            "allow_root = true\n"
            f"[runtimes.{name}]\ncommand = {json.dumps(command)}\narguments = {json.dumps(arguments)}\n"
        )
        agent.start(environment={"GPUSCHED_AGENT_CONFIG": str(tmp_path / "agent.toml")})

    return start


def serving(agent: Agent, control: SocketControl, port: int, job: int = 1) -> str:
    """Order a container that repeats what it receives, and return its key once it runs."""
    script = f"echo listening; exec nc -ll -p {port} -e cat"
    key = run(control, "sh", "-c", script, job=job)
    control.start_of(key)
    log = agent.ranks / key / "output.log"
    eventually(lambda: log.exists() and "listening" in log.read_text(), 20, "the server in the container")
    return key


def repeats(control: SocketControl, key: str, port: int) -> bool:
    """Return whether a stream reaches the server, which may not listen yet."""
    stream = control.open_stream(key, port=port)
    eventually(lambda: stream.endpoint.is_open or stream.endpoint.over, 10, "an answer")
    if stream.endpoint.over:
        return False
    stream.write(b"hello")
    is_repeated = stream.read(5) == b"hello"
    stream.end()
    return is_repeated


def helpers(agent: Agent) -> list[int]:
    """The processes of the agent in networks of containers."""
    assert agent.process is not None
    return [pid for pid in processes.descendants(agent.process.pid) if "container_network" in _command_line(pid)]


def _command_line(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_port_in_a_containers_own_network_is_reached(start: Start, agent: Agent, control: SocketControl) -> None:
    """Two containers listen on one port, as does a service of the node: each stream reaches its own container."""
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        start("none")
        key = serving(agent, control, port)
        other = serving(agent, control, port, job=2)
        eventually(lambda: repeats(control, key, port), 10, "the first container")
        [first] = helpers(agent)
        eventually(lambda: repeats(control, other, port), 10, "the second container")
        refused = control.open_stream(key, port=free_port())
        assert refused.reason() == Reason.NOT_LISTENING
        assert repeats(control, key, port)
        assert len(helpers(agent)) == 2, "one process for each container"
        control.stop(key)
        control.end_of(key)
        eventually(lambda: not psutil.pid_exists(first) or psutil.Process(first).status() == "zombie", 10, "its end")
        assert repeats(control, other, port)
        assert control.open_stream(key, port=port).reason() == Reason.NO_RANK


def test_stream_to_a_container_in_the_network_of_its_node_reaches_nothing_else(
    start: Start, agent: Agent, control: SocketControl
) -> None:
    port, others = free_port(), free_port()
    start("host")
    key = serving(agent, control, port)
    serving(agent, control, others, job=2)
    eventually(lambda: repeats(control, key, port), 10, "the container")
    with socket.create_server(("127.0.0.1", 0)) as service:
        for foreign in (service.getsockname()[1], others):
            assert control.open_stream(key, port=foreign).reason() == Reason.NOT_LISTENING
    assert helpers(agent) == []


def test_unix_socket_of_a_containers_user_is_reached(start: Start, agent: Agent, control: SocketControl) -> None:
    """A69: the container runs as the tenant's Unix user, and so the socket is not the agent's."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    start("none")
    key = run(control, "sleep", "60", user="daemon")
    control.start_of(key)
    spec = rank_dir.read(agent.ranks / key, rank_dir.SPEC) or {}
    path = f"{spec['environment'][socket_dir.VARIABLE]}/web"
    with socket.socket(socket.AF_UNIX) as program:  # as the job's own program, which the small image lacks
        program.bind(path)
        program.listen()
        assert control.open_stream(key, socket="web").reason() == Reason.NOT_LISTENING, "another user's"
        os.chown(path, 1, 1)
        stream = control.open_stream(key, socket="web")
        eventually(lambda: stream.endpoint.is_open or stream.endpoint.over, 10, "an answer")
        assert stream.endpoint.over is None
        stream.write(b"hello")
        assert program.accept()[0].recv(5) == b"hello"
    control.stop(key, grace_seconds=0)
    control.end_of(key, 60)


def test_container_of_another_agent_is_not_joined(tmp_path: Path) -> None:
    """A process that is in no cgroup of the container, as where the agent has its own process numbers."""
    from gpusched.agent.streams.container_network import Unreachable, find

    runtime = tmp_path / "podman"
    runtime.write_text(f"#!/bin/sh\necho {os.getpid()}\n")
    runtime.chmod(0o755)
    (tmp_path / "id").write_text("0123456789abcdef")
    container = {"name": "x", "command": [str(runtime)], "id_file": str(tmp_path / "id")}
    with pytest.raises(Unreachable, match="cannot see the processes"):
        find({"container": container, "environment": {"PATH": "/usr/bin:/bin"}})
