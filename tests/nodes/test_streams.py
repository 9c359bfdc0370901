"""Streams between web processes of a machine, frames of hostile agents, and streams for the server's own use (A69)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from gpusched.lib import histograms
from gpusched.lib.api.problems import Problem
from gpusched.protocol import streams as frames
from gpusched.protocol.streams import WINDOW_BYTES, Kind, Open, Reason, StreamReset, Violation
from nodes.streams import opening, peers
from nodes.streams.agents import AgentRegistry, AgentStreams
from nodes.streams.heads import Heads
from nodes.streams.peers import Peers, Pipe, answered
from nodes.streams.stream import Stream
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit
from tests.nodes.streaming import EchoAgent, cleaned, echoing

NODE, TARGET = 7, Open(key="1.1.0", port=80)


@pytest.fixture
async def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[EchoAgent, Peers, Peers]]:
    """An agent, the web process that holds it, and another one; in a directory whose path is too long for sockets."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    monkeypatch.setattr(peers, "_directory", lambda: directory / "streams")
    agent, registry = EchoAgent(), AgentRegistry()
    registry.connect(NODE, agent.streams)
    holder, other = (Peers(agents, Heads(()).ask) for agents in (registry, AgentRegistry()))
    await holder.listen()
    await other.listen()
    yield agent, holder, other
    agent.streams.close()
    await holder.close()
    await other.close()


async def until(is_met: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not is_met():
            await asyncio.sleep(0.005)


async def relayed(other: Peers, target: Open = TARGET) -> Stream:
    stream = await other.start(NODE, target)
    assert stream is not None
    await stream.opened(20)
    return stream


async def assert_echoed(stream: Stream) -> None:
    """Three windows of bytes come back, while they are sent."""
    data = bytes(range(256)) * (3 * WINDOW_BYTES // 256)
    writing = asyncio.create_task(stream.write(data))
    assert await read(stream, len(data)) == data
    await writing


async def read(stream: Stream, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(20):
        while len(data) < size and (part := await stream.read()):
            data += part
    return data


async def test_process_has_no_name_before_it_listens_and_tries_again_after_an_error(
    pair: tuple[EchoAgent, Peers, Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others remove the name of a process that does not listen, as of one that was killed."""
    _, holder, other = pair
    await holder.close()
    start, found = asyncio.start_unix_server, list[list[Path]]()

    async def start_late(*arguments: Any) -> asyncio.Server:
        server = await start(*arguments)
        found.append(list(peers._directory().glob("*.sock")))
        if len(found) == 1:
            server.close()
            raise OSError("no file descriptor is left")
        return server

    monkeypatch.setattr(asyncio, "start_unix_server", start_late)
    await holder.listen()
    await holder.listen()
    assert [len(names) for names in found] == [1, 1], "that of the other process"
    await relayed(other)


async def test_stream_reaches_the_agent_of_another_web_process(pair: tuple[EchoAgent, Peers, Peers]) -> None:
    """A69: over a socket that only the server's user can open; each direction ends on its own."""
    agent, _, other = pair
    stream = await relayed(other)
    await assert_echoed(stream)
    stream.end()
    assert await read(stream, 1) == b""
    await stream.finished()
    await until(lambda: not len(agent.streams))
    directory = peers._directory()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


async def test_bytes_of_streams_are_counted_in_each_direction(
    pair: tuple[EchoAgent, Peers, Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, by the process that holds the agent, and without the headers of frames."""
    agent, holder, other = pair
    counted: dict[str, float] = {}

    class Counts(histograms.Pending):
        def add(self, name: str, label: str, value: float) -> None:
            counted[label] = counted.get(label, 0) + value

    monkeypatch.setattr("nodes.streams.agents.pending", Counts())
    stream = await relayed(other)
    assert holder._registry.open_streams() == 1
    size = WINDOW_BYTES + 1000
    writing = asyncio.create_task(stream.write(bytes(size)))
    await read(stream, size)
    await writing
    agent.streams.receive(frames.encode(99, Kind.DATA, b"of no stream"))
    assert counted == {"to_job": size, "from_job": size}
    stream.close()
    await until(lambda: holder._registry.open_streams() == 0)


class Half:
    """One end of a pipe in memory."""

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other = self

    def send(self, message: bytes) -> None:
        self.other.arrived.put_nowait(message)

    async def messages(self) -> AsyncIterator[bytes]:
        while (message := await self.arrived.get()) is not None:
            yield message

    def close(self) -> None:
        self.other.arrived.put_nowait(None)


@pytest.mark.parametrize("is_holder", [True, False], ids=["the holder", "another process of that head"])
async def test_stream_reaches_the_agent_through_another_head(
    pair: tuple[EchoAgent, Peers, Peers], monkeypatch: pytest.MonkeyPatch, is_holder: bool
) -> None:
    """Whichever of that head's web processes takes the connection."""
    agent, holder, other = pair
    ours, theirs = Half(), Half()
    ours.other, theirs.other = theirs, ours
    answering: list[asyncio.Task[None]] = []

    async def ask(node_id: int) -> Pipe | None:
        answering.append(asyncio.create_task((holder if is_holder else other).answer_head(node_id, theirs)))
        return await answered(ours)

    async def no_process(_: int) -> None:
        """This machine has no other process."""

    here = Peers(AgentRegistry(), ask)
    monkeypatch.setattr(here, "_ask_here", no_process)
    stream = await relayed(here)
    await assert_echoed(stream)
    stream.close()
    async with asyncio.timeout(20):
        await answering[0]
    await until(lambda: not len(agent.streams))


async def test_slow_reader_of_another_process_stops_its_own_writer_only(pair: tuple[EchoAgent, Peers, Peers]) -> None:
    """A69: at most a window waits in either process."""
    agent, _, other = pair
    stuck, lively = await relayed(other), await relayed(other)
    writing = asyncio.create_task(stuck.write(bytes(8 * WINDOW_BYTES)))
    await until(lambda: stuck._endpoint.available == WINDOW_BYTES)
    await lively.write(b"alive")
    assert await read(lively, 5) == b"alive"
    assert not writing.done() and stuck._endpoint.available == WINDOW_BYTES
    assert sum(end.available for end in agent.ends.values()) <= WINDOW_BYTES
    stuck.close()
    with pytest.raises(StreamReset):
        await writing
    await until(lambda: len(agent.streams) == 1)
    lively.close()


async def test_stream_ends_when_a_process_in_between_does(pair: tuple[EchoAgent, Peers, Peers]) -> None:
    """A69."""
    agent, holder, other = pair
    stream, left = await relayed(other), await relayed(other)
    left.close()
    await until(lambda: agent.ends[2].over is not None)
    assert agent.ends[2].over is not None and agent.ends[2].over.reason == Reason.CLOSED
    agent.streams.close()
    with pytest.raises(StreamReset) as lost:
        await asyncio.wait_for(stream.read(), 20)
    assert lost.value.reason == Reason.AGENT_LOST


async def test_processes_without_the_agent_and_dead_ones_are_passed_over(pair: tuple[EchoAgent, Peers, Peers]) -> None:
    """A69: the socket of a killed process stays; whoever meets it removes it."""
    _, holder, other = pair
    dead = peers._directory() / "0-dead.sock"
    with socket.socket(socket.AF_UNIX) as listener, peers._reachable(dead) as path:
        listener.bind(path)
    assert await other.start(NODE + 1, TARGET) is None
    assert not dead.exists()
    assert await holder.start(NODE + 1, TARGET) is None
    stream = await other.start(NODE, Open(key="1.1.0", port=1))
    assert stream is not None
    with pytest.raises(StreamReset) as refused:
        await stream.opened(20)
    assert refused.value.reason == Reason.NOT_LISTENING


async def test_older_agent_of_another_process_is_refused(pair: tuple[EchoAgent, Peers, Peers]) -> None:
    """A69: it never gets a frame."""
    agent, holder, other = pair
    holder._registry.connect(NODE, AgentStreams(agent, can_stream=False))
    stream = await other.start(NODE, TARGET)
    assert stream is not None
    with pytest.raises(StreamReset) as refused:
        await stream.opened(20)
    assert refused.value.reason == Reason.UNSUPPORTED and not agent.opened


async def test_hostile_agent_ends_at_most_its_own_streams() -> None:
    """A69."""
    agent = EchoAgent()
    good = agent.streams.start(lambda number, wake: Stream(TARGET, number, wake))
    broken = agent.streams.start(lambda number, wake: Stream(TARGET, number, wake))
    for stream in (good, broken):
        await stream.opened(20)
    for frame in (b"", b"\0\0\0\1", b"\0\0\0\1\x63"):
        with pytest.raises(Violation):
            agent.streams.receive(frame)
    agent.streams.receive(frames.encode(99, Kind.DATA, b"of no stream"))
    agent.streams.receive(frames.encode(2, Kind.CREDIT, b"\xff\xff\xff\xff"))
    with pytest.raises(StreamReset) as ended:
        await broken.read()
    assert ended.value.reason == Reason.VIOLATION
    await good.write(b"still")
    assert await read(good, 5) == b"still"
    good.close()
    await until(lambda: not len(agent.streams))
    agent.streams.close()


async def test_stream_over_a_lost_connection_ends_at_once() -> None:
    """A69."""
    agent = EchoAgent()
    agent.streams.close()
    stream = agent.streams.start(lambda number, wake: Stream(TARGET, number, wake))
    with pytest.raises(StreamReset) as lost:
        await stream.opened(20)
    assert lost.value.reason == Reason.AGENT_LOST and not len(agent.streams)


@pytest.mark.django_db(transaction=True)
def test_server_opens_streams_for_its_own_use() -> None:
    """A69: without a caller, as for serving."""
    tenant, node = make_tenant(), make_node()
    job = submit(make_member(tenant), tenant)

    async def problem(**target: Any) -> tuple[int, str]:
        with pytest.raises(Problem) as refused:
            await opening.open_stream(target.pop("job", job), **target)
        return refused.value.status, refused.value.code

    async def work() -> None:
        assert await problem(port=80) == (409, "wrong_state")
        await sync_to_async(run_cycle)()
        await sync_to_async(node.start_all)()
        assert await problem(port=80) == (503, "node_unreachable")
        with echoing(node.id) as agent:
            assert await problem(job=987_654, port=80) == (404, "not_found")
            assert await problem() == (400, "invalid")
            assert await problem(port=1) == (409, "not_listening")
            async with await opening.open_stream(job, socket="api.sock") as stream:
                await stream.write(b"hello")
                assert await read(stream, 5) == b"hello"
            await until(lambda: not len(agent.streams))

    async def cleanly() -> None:
        async with cleaned():
            await work()

    asyncio.run(cleanly())
