"""Reach an agent whose connection another web process holds: of this machine, over a Unix socket per web process in the
data directory, or of another head (nodes/streams/heads.py). Each stream has a connection of its own. Frames pass
through unchanged, so the flow control stays end to end.

The process that opens a stream asks the others for the agent. That needs no table, whose rows a killed process would
leave behind, and an agent that has just moved is found at once."""

import asyncio
import contextlib
import logging
import os
import secrets
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
from django.conf import settings

from gpusched.protocol import streams as frames
from gpusched.protocol.streams import MAX_DATA_BYTES, Kind, Open, Reason, Reset, Violation
from nodes.streams.agents import AgentRegistry, AgentStreams
from nodes.streams.stream import Stream

logger = logging.getLogger(__name__)
CONNECT_SECONDS = 2.0
LOST = "a web process between the client and the node ended"
_LENGTH = struct.Struct("!I")
MAX_MESSAGE_BYTES = MAX_DATA_BYTES + 1024
HERE = b""  # the answer of the process that holds the agent


class Pipe(Protocol):
    """A connection between two web processes, for one stream. After the answer, each message is a frame."""

    def send(self, message: bytes) -> None:
        """Send a message; do nothing once it is closed. Credit bounds what waits."""

    def messages(self) -> AsyncIterator[bytes]:
        """Yield messages until the other side closes. Raises OSError if it breaks, Violation for no message."""

    def close(self) -> None:
        """Close it after what was sent. Harmless when repeated."""


AskHeads = Callable[[int], Awaitable[Pipe | None]]


class _Question(msgspec.Struct):
    node_id: int


class _UnixPipe:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, message: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(_LENGTH.pack(len(message)) + message)

    async def messages(self) -> AsyncIterator[bytes]:
        while True:
            try:
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if length > MAX_MESSAGE_BYTES:
                    raise Violation(f"a message of {length} bytes")
                yield await self._reader.readexactly(length)
            except asyncio.IncompleteReadError:
                return

    def close(self) -> None:
        self._writer.close()


class RelayedStream:
    """A stream that another process has opened: frames between its socket and the agent's connection."""

    def __init__(self, stream_id: int, wake: Callable[[], None], pipe: Pipe) -> None:
        self._stream_id, self._wake, self._pipe = stream_id, wake, pipe
        self._frames: deque[bytes] = deque()
        self._is_over = False

    def take(self, frame: bytes) -> None:
        """Queue a frame of the other process for the agent."""
        self._frames.append(frames.renumbered(frame, self._stream_id))
        self._wake()

    def leave(self) -> None:
        """End it after its last frames, because the other process has closed its side. The agent ignores this if both
        ends have finished."""
        self._frames.append(
            frames.encode(self._stream_id, Kind.RESET, msgspec.json.encode(Reset(reason=Reason.CLOSED)))
        )
        self._is_over = True
        self._wake()

    @property
    def has_frame(self) -> bool:
        return bool(self._frames)

    def next_frame(self) -> bytes:
        return self._frames.popleft()

    @property
    def is_done(self) -> bool:
        return self._is_over and not self._frames

    def receive(self, kind: Kind, payload: bytes) -> None:
        self._pipe.send(frames.encode(0, kind, payload))

    def lose(self, reason: Reason, detail: str) -> None:
        self.receive(Kind.RESET, msgspec.json.encode(Reset(reason=reason, detail=detail)))
        self._frames.clear()
        self._is_over = True


class Peers:
    """The other web processes. `ask_heads` asks those of other machines for a node's agent."""

    def __init__(self, registry: AgentRegistry, ask_heads: AskHeads) -> None:
        self._registry, self._ask_heads = registry, ask_heads
        self._own: Path | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Let other processes reach the agents of this one. Harmless when repeated. Without it only streams of this
        process work, so a failure is logged."""
        if self._own is not None:
            return
        directory = _directory()
        self._own = directory / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        # Not under its name before it listens: another process takes one that does not for one that was killed.
        unready = self._own.with_suffix(".new")
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)  # closed before the socket has its mode
            with _reachable(unready) as path:
                self._server = await asyncio.start_unix_server(self._serve, path)
            unready.chmod(0o600)
            unready.rename(self._own)
        except OSError as error:
            self._own = None  # the next agent that connects tries again
            logger.error("other web processes cannot reach the agents of this one: %s", error)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._own is not None:
            self._own.unlink(missing_ok=True)
        self._own = self._server = None

    async def start(self, node_id: int, opening: Open) -> Stream | None:
        """Open a stream through the process that holds the agent; None if none of the others does."""
        pipe = await self._ask_here(node_id) or await self._ask_heads(node_id)
        return None if pipe is None else self._carry(opening, pipe)

    async def _ask_here(self, node_id: int) -> Pipe | None:
        for path in sorted(_directory().glob("*.sock")):
            if path == self._own:
                continue
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    return await _connect(path, node_id)
            except (OSError, EOFError, Violation):
                continue
        return None

    def _carry(self, opening: Open, pipe: Pipe) -> Stream:
        def wake() -> None:
            while stream.has_frame:
                pipe.send(stream.next_frame())
            if stream.is_done:
                pipe.close()

        stream = Stream(opening, 0, wake)
        wake()
        self._keep(self._receive(stream, pipe))
        return stream

    async def _receive(self, stream: Stream, pipe: Pipe) -> None:
        try:
            async for message in pipe.messages():
                _, kind, payload = frames.decode(message)
                stream.receive(kind, payload)
        except (OSError, Violation) as error:
            logger.warning("a stream through another web process broke: %s", error)
        finally:
            stream.lose(Reason.SERVER_LOST, LOST)
            pipe.close()

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop holds only weak references
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pipe = _UnixPipe(reader, writer)
        try:
            async for message in pipe.messages():
                await self.answer(msgspec.json.decode(message, type=_Question).node_id, pipe)
                break
        except (OSError, Violation, msgspec.DecodeError) as error:
            logger.warning("the stream of another web process broke: %s", error)
        finally:
            pipe.close()

    async def answer_head(self, node_id: int, pipe: Pipe) -> None:
        """Answer a web process of another head, also for the other processes of this machine."""
        if self._registry.get(node_id) is not None:
            await self.answer(node_id, pipe)
        elif (other := await self._ask_here(node_id)) is not None:
            pipe.send(HERE)
            await _connected(pipe, other)

    async def answer(self, node_id: int, pipe: Pipe) -> None:
        """Answer another process that asks for an agent, and relay the frames of its stream until one side closes.
        Return at once if the agent is not connected here. Raises OSError or Violation."""
        agent = self._registry.get(node_id)
        if agent is None:
            return
        pipe.send(HERE)
        if not agent.can_stream:
            pipe.send(frames.encode(0, Kind.RESET, msgspec.json.encode(too_old())))
            async for _ in pipe.messages():
                pass  # the other process closes it when it has read this
            return
        stream = agent.start(lambda number, wake: RelayedStream(number, wake, pipe))
        try:
            async for message in pipe.messages():
                stream.take(message)
        finally:
            stream.leave()


async def _connected(one: Pipe, other: Pipe) -> None:
    """Pass messages on in both directions until one side closes. Raises OSError or Violation."""

    async def copy(source: Pipe, target: Pipe) -> None:
        async for message in source.messages():
            target.send(message)

    copying = [asyncio.create_task(copy(*pair)) for pair in ((one, other), (other, one))]
    try:
        done, _ = await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in copying:
            task.cancel()
        await asyncio.gather(*copying, return_exceptions=True)
        one.close()
        other.close()


def too_old() -> Reset:
    """Return the refusal of a stream by a node with an older agent."""
    return Reset(reason=Reason.UNSUPPORTED, detail="the agent of the job's node is too old for streams; upgrade it")


def local(agent: AgentStreams, opening: Open) -> Stream:
    """Open a stream over an agent's connection of this process."""
    return agent.start(lambda number, wake: Stream(opening, number, wake))


def _directory() -> Path:
    return Path(settings.ENV.data_dir).absolute() / "streams"


async def _connect(path: Path, node_id: int) -> Pipe:
    """Ask a process for an agent. OSError or EOFError if it is gone, or does not hold it."""
    try:
        with _reachable(path) as short:
            pipe = _UnixPipe(*await asyncio.open_unix_connection(short))
    except ConnectionRefusedError:  # it was killed
        os.unlink(path)
        raise
    pipe.send(msgspec.json.encode(_Question(node_id)))
    return await answered(pipe)


async def answered(pipe: Pipe) -> Pipe:
    """Wait for the answer to a query for an agent. Raises EOFError if the other process does not hold it."""
    try:
        async for message in pipe.messages():
            if message == HERE:
                return pipe
        raise EOFError
    except BaseException:
        pipe.close()
        raise


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield a path to the same file that is short enough for the kernel, whatever the data directory is called."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)
