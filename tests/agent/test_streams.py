"""Streams from the control plane into a rank, over the agent's WebSocket (A69)."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpusched.agent.rank_files import rank_dir, socket_dir
from gpusched.agent.streams import ports, targets
from gpusched.protocol import streams
from gpusched.protocol.streams import WINDOW_BYTES, Kind, Reason
from tests.agent.conftest import Agent
from tests.agent.control import eventually
from tests.agent.socket_control import OpenedStream, SocketControl
from tests.agent.test_isolation import REFUSING, USER, directory, needs_root
from tests.system.stack import free_port
from tests.waiting import wait_for

__all__ = ["directory"]
# Serves each connection in a thread: "echo" answers what comes, "pour" sends without an end, "sink" reads nothing.
SERVER = """
import os, socket, sys, threading
where, how = sys.argv[1:]
if where.isdigit():
    listener = socket.create_server(("127.0.0.1", int(where)))
elif where.startswith("v6:"):
    listener = socket.create_server(("::", int(where[3:])), family=socket.AF_INET6)
else:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ["GPUSCHED_SOCKET_DIR"] + "/" + where)
    listener.listen()
def serve(connection):
    if how == "pour":
        while True:
            connection.sendall(bytes(1 << 16))
    if how == "sink":
        threading.Event().wait()
    if how == "leave":
        connection.sendall(b"last words")
        os._exit(0)
    while data := connection.recv(1 << 16):
        connection.sendall(data)
    connection.sendall(b" and goodbye")
    connection.close()
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture
def control() -> Iterator[SocketControl]:
    with SocketControl() as running:
        yield running


def interpreter(user: str) -> str:
    """Python as this user can run it: the one of the tests may be in a closed home."""
    if not user:
        return sys.executable
    if not os.path.exists(system := "/usr/bin/python3"):
        pytest.skip("this machine has no /usr/bin/python3")
    return system


def serving(agent: Agent, control: SocketControl, where: str, how: str = "echo", **fields: Any) -> str:
    """Order a job that serves, and return its key once it listens."""
    key = control.run(interpreter(str(fields.get("user", ""))), "-u", "-c", SERVER, where, how, **fields)
    if agent.process is None:
        agent.start()
    control.start_of(key)
    log = agent.ranks / key / rank_dir.LOG
    eventually(lambda: log.exists() and "listening" in log.read_text(), 20, "the server of the job")
    return key


def test_bytes_pass_both_ways_and_each_direction_ends_on_its_own(agent: Agent, control: SocketControl) -> None:
    """A69."""
    port = free_port()
    key = serving(agent, control, str(port))
    assert control.has_stream_header
    assert control.boot_id == rank_dir.boot_id()
    stream = control.open_stream(key, port=port)
    data = os.urandom(3 * WINDOW_BYTES)
    for start in range(0, len(data), WINDOW_BYTES // 2):
        part = data[start : start + WINDOW_BYTES // 2]
        stream.write(part)
        assert stream.read(len(part)) == part
    stream.end()
    assert stream.read(100) == b" and goodbye"
    eventually(lambda: stream.endpoint.is_over and stream.endpoint.over is None, 10, "a good end")


@pytest.mark.parametrize("user", ["", pytest.param(USER, marks=needs_root)])
def test_unix_socket_in_the_folder_of_the_rank_is_reached(
    directory: Path, agent: Agent, control: SocketControl, user: str
) -> None:
    """A69: as the agent's user, and as the Unix user of the tenant. The folder goes with the rank."""
    agent.directory = directory / "agent"
    if user:
        agent.start(environment=REFUSING)
    name = "s" * 48  # the longest
    key = serving(agent, control, name, user=user)
    stream = control.open_stream(key, socket=name)
    stream.write(b"hello")
    assert stream.read(5) == b"hello"
    folder = Path((rank_dir.read(agent.ranks / key, rank_dir.SPEC) or {})["environment"][socket_dir.VARIABLE])
    assert len(str(folder / name)) <= 107 and folder.stat().st_mode & 0o777 == 0o700
    control.stop(key)
    control.end_of(key)
    assert stream.reason() in (Reason.RANK_ENDED, Reason.BROKEN)
    assert not folder.exists()


def test_stream_reaches_nothing_but_sockets_of_its_rank(agent: Agent, control: SocketControl, tmp_path: Path) -> None:
    """A69: neither a service of the node, nor another rank, nor what a link in the folder points to. The answers for a
    used and an unused port are the same."""
    port = free_port()
    other = serving(agent, control, str(port))
    key = serving(agent, control, "own", job=2)
    folder = Path((rank_dir.read(agent.ranks / key, rank_dir.SPEC) or {})["environment"][socket_dir.VARIABLE])
    with socket.create_server(("127.0.0.1", 0)) as service, socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(tmp_path / "foreign"))
        foreign.listen()
        (folder / "link").symlink_to(tmp_path / "foreign")
        (folder / "file").write_text("no socket")
        (folder / "way").symlink_to(tmp_path)
        refused = [
            control.open_stream(key, port=service.getsockname()[1]),
            control.open_stream(key, port=port),
            control.open_stream(key, port=free_port()),
            *(control.open_stream(key, socket=name) for name in ("link", "file", "way", "absent")),
            *(control.open_stream(key, socket=name) for name in ("..", "../x", "", "a/b", "x" * 49, "own\n")),
        ]
        assert [stream.reason() for stream in refused] == [Reason.NOT_LISTENING] * len(refused)
        details = {stream.endpoint.over.detail for stream in refused[:3] if stream.endpoint.over}
        assert len({detail.replace(detail.split()[-3], "PORT") for detail in details}) == 1, details
        for name in ("7.1.0", "../2.1.0", ""):
            assert control.open_stream(name, port=port).reason() == Reason.NO_RANK
    stream = control.open_stream(other, port=port)
    stream.write(b"still")
    assert stream.read(5) == b"still"


def test_listener_on_ipv6_is_reached(agent: Agent, control: SocketControl) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/tcp6").exists():
        pytest.skip("this machine has no IPv6")
    port = free_port()
    try:
        socket.create_server(("::", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    stream = control.open_stream(serving(agent, control, f"v6:{port}"), port=port)
    stream.write(b"six")
    assert stream.read(3) == b"six"


def test_slow_reader_stops_its_own_program_only(agent: Agent, control: SocketControl) -> None:
    """A69: 20 streams whose readers have stopped fill no memory, and neither another stream nor reports wait."""
    port, echo = free_port(), free_port()
    key = serving(agent, control, str(port), "pour")
    other = serving(agent, control, str(echo), job=2)
    assert agent.process is not None
    memory = psutil.Process(agent.process.pid).memory_info
    before_bytes = memory().rss
    stuck = [control.open_stream(key, port=port) for _ in range(20)]
    eventually(lambda: all(s.endpoint.available == WINDOW_BYTES for s in stuck), 20, "full windows")
    lively = control.open_stream(other, port=echo)
    reports, began = len(control.syncs), time.monotonic()
    for _ in range(40):
        lively.write(b"x" * WINDOW_BYTES)
        assert len(lively.read(WINDOW_BYTES)) == WINDOW_BYTES
    seconds = time.monotonic() - began
    assert len(control.syncs) - reports >= seconds / 0.1 / 3, "reports go on"
    assert memory().rss - before_bytes < 20 * (1 << 20)
    first = stuck[0]
    for _ in range(4):
        assert len(first.read(WINDOW_BYTES)) == WINDOW_BYTES


def test_program_that_reads_nothing_stops_its_own_writer_only(agent: Agent, control: SocketControl) -> None:
    """A69."""
    port, echo = free_port(), free_port()
    key = serving(agent, control, str(port), "sink")
    other = serving(agent, control, str(echo), job=2)
    stuck, lively = control.open_stream(key, port=port), control.open_stream(other, port=echo)
    eventually(lambda: stuck.endpoint.is_open, 10, "the stream")
    sent = 0
    with suppress(TimeoutError):
        while True:
            wait_for(lambda: stuck.endpoint.room, 0.3)
            sent += (size := stuck.endpoint.room)
            stuck.write(bytes(size))
    assert sent >= WINDOW_BYTES
    lively.write(b"alive")
    assert lively.read(5) == b"alive"


def test_last_words_of_a_program_arrive_before_the_stream_ends(agent: Agent, control: SocketControl) -> None:
    """A69."""
    port = free_port()
    stream = control.open_stream(serving(agent, control, str(port), "leave"), port=port)
    assert stream.read(100) == b"last words", stream.endpoint.over
    stream.end()
    control.end_of("1.1.0")
    eventually(lambda: stream.endpoint.is_over, 10, "the end of the stream")


def test_program_sees_the_end_of_its_stream_when_the_server_goes(agent: Agent, control: SocketControl) -> None:
    """A69: streams belong to a connection; the next one begins without them, and the job continues."""
    port = free_port()
    key = serving(agent, control, str(port))
    stream = control.open_stream(key, port=port)
    stream.write(b"hello")
    assert stream.read(5) == b"hello"
    assert connections_to(port) == 1
    control.streams.clear()
    control.refusals = 1  # closes the connection; the agent joins again
    eventually(lambda: connections_to(port) == 0, 10, "the end of the program's connection")
    again = control.open_stream(key, port=port)
    again.write(b"again")
    assert again.read(5) == b"again"


def connections_to(port: int) -> int:
    """Established connections to a port, at their listener's side."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


def test_hostile_frames_end_at_most_their_own_stream(agent: Agent, control: SocketControl) -> None:
    """A69."""
    port = free_port()
    key = serving(agent, control, str(port))
    good, broken = control.open_stream(key, port=port), control.open_stream(key, port=port)
    for stream in (good, broken):
        stream.write(b"hello")
        assert stream.read(5) == b"hello"
    number = broken.endpoint.stream_id
    control.raw_frames += [
        b"", b"\0", b"\0\0\0\1\xff", streams.encode(99, Kind.DATA, b"unknown"), streams.encode(98, Kind.OPEN, b"{"),
        streams.encode(97, Kind.OPEN, b'{"key":"1.1.0"}'), streams.encode(number, Kind.CREDIT, b"\xff\xff\xff\xff"),
    ]  # fmt: skip
    assert broken.reason() == Reason.VIOLATION
    good.write(b"still")
    assert good.read(5) == b"still"
    reports = len(control.syncs)
    eventually(lambda: len(control.syncs) > reports + 3, 10, "more reports")


def test_all_sockets_that_could_accept_must_belong_to_the_rank() -> None:
    """A69: a port can have several listeners (SO_REUSEPORT)."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as mine:
        port = mine.getsockname()[1]
        with socket.create_server(("127.0.0.1", port), reuse_port=True):
            listeners = ports.listeners(port)
            assert listeners is not None and len(listeners.inodes) == 2 and listeners.host == "127.0.0.1"
            assert ports.are_owned(listeners.inodes, [os.getpid()])
            assert not ports.are_owned([*listeners.inodes, "1"], [os.getpid()])
            assert not ports.are_owned(listeners.inodes, [os.getppid(), 1 << 30])
    assert ports.listeners(port) is None


def test_connection_that_another_process_has_accepted_is_noticed() -> None:
    """A69: the rank's program may stop listening, and another process take the port, after the first check."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        port, own = listener.getsockname()[1], ours.getsockname()[1]
        assert ports.accepted(port, own) is None
        with listener.accept()[0]:
            listener.close()
            inode = ports.accepted(port, own)
            assert inode is not None and ports.are_owned([inode], [os.getpid()])
            with pytest.raises(targets.Refused):
                targets._require_own(lambda: [1 << 30], port, own)
        targets._require_own(list, port, own)  # closed by its program: what it sent can be read


def test_many_streams_are_refused_before_the_agent_has_no_file_left(
    agent: Agent, control: SocketControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A69."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        agent.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    port = free_port()
    key = serving(agent, control, str(port))
    opened: list[OpenedStream] = [control.open_stream(key, port=port) for _ in range(70)]
    eventually(lambda: all(s.endpoint.is_open or s.endpoint.over for s in opened), 20, "all answers")
    assert sum(s.endpoint.is_open for s in opened) == 64
    assert {s.endpoint.over.reason for s in opened if s.endpoint.over} == {Reason.TOO_MANY}
