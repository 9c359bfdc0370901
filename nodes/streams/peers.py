"""Reach an agent whose connection another web process of this machine holds: over a Unix socket per web process in the
data directory, one connection per stream. Frames pass through unchanged, so the flow control stays end to end.

The process that opens a stream asks the others for the agent. That needs no table, whose rows a killed process would
leave behind, and an agent that has just moved is found at once."""

import asyncio
import contextlib
import logging
import os
import secrets
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path

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
_MAX_MESSAGE_BYTES = MAX_DATA_BYTES + 1024
_HERE = b""  # the answer of the process that holds the agent


class _Question(msgspec.Struct):
    node_id: int


class RelayedStream:
    """A stream that another process has opened: frames between its socket and the agent's connection."""

    def __init__(self, stream_id: int, wake: Callable[[], None], writer: asyncio.StreamWriter) -> None:
        self._stream_id, self._wake, self._writer = stream_id, wake, writer
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
        _write(self._writer, frames.encode(0, kind, payload))

    def lose(self, reason: Reason, detail: str) -> None:
        self.receive(Kind.RESET, msgspec.json.encode(Reset(reason=reason, detail=detail)))
        self._frames.clear()
        self._is_over = True


class Peers:
    """The web processes of this machine, and this one among them."""

    def __init__(self, registry: AgentRegistry) -> None:
        self._registry = registry
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
        for path in sorted(_directory().glob("*.sock")):
            if path == self._own:
                continue
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await _connect(path, node_id)
            except (OSError, EOFError, Violation):
                continue
            return self._carry(opening, reader, writer)
        return None

    def _carry(self, opening: Open, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Stream:
        def wake() -> None:
            while stream.has_frame:
                _write(writer, stream.next_frame())
            if stream.is_done:
                writer.close()

        stream = Stream(opening, 0, wake)
        wake()
        self._keep(self._receive(stream, reader, writer))
        return stream

    async def _receive(self, stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async for message in _messages(reader):
                _, kind, payload = frames.decode(message)
                stream.receive(kind, payload)
        except (OSError, Violation) as error:
            logger.warning("a stream through another web process broke: %s", error)
        finally:
            stream.lose(Reason.SERVER_LOST, LOST)
            writer.close()

    def _keep(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop holds only weak references
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer another process, and relay the frames of its stream."""
        stream: RelayedStream | None = None
        try:
            async for message in _messages(reader):
                if stream is not None:
                    stream.take(message)
                elif (agent := self._registry.get(msgspec.json.decode(message, type=_Question).node_id)) is None:
                    break
                elif agent.can_stream:
                    _write(writer, _HERE)
                    stream = agent.start(lambda number, wake: RelayedStream(number, wake, writer))
                else:
                    _write(writer, _HERE)
                    _write(writer, frames.encode(0, Kind.RESET, msgspec.json.encode(too_old())))
        except (OSError, Violation, msgspec.DecodeError) as error:
            logger.warning("the stream of another web process broke: %s", error)
        finally:
            if stream is not None:
                stream.leave()
            writer.close()


def too_old() -> Reset:
    """Return the refusal of a stream by a node with an older agent."""
    return Reset(reason=Reason.UNSUPPORTED, detail="the agent of the job's node is too old for streams; upgrade it")


def local(agent: AgentStreams, opening: Open) -> Stream:
    """Open a stream over an agent's connection of this process."""
    return agent.start(lambda number, wake: Stream(opening, number, wake))


def _directory() -> Path:
    return Path(settings.ENV.data_dir).absolute() / "streams"


async def _connect(path: Path, node_id: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask a process for an agent. OSError or EOFError if it is gone, or does not hold it."""
    try:
        with _reachable(path) as short:
            reader, writer = await asyncio.open_unix_connection(short)
    except ConnectionRefusedError:  # it was killed
        os.unlink(path)
        raise
    _write(writer, msgspec.json.encode(_Question(node_id)))
    try:
        async for message in _messages(reader):
            if message == _HERE:
                return reader, writer
        raise EOFError
    except BaseException:
        writer.close()
        raise


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[str]:
    """Yield a path to the same file that is short enough for the kernel, whatever the data directory is called."""
    handle = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)


def _write(writer: asyncio.StreamWriter, message: bytes) -> None:
    """Send a message. Credit bounds what waits in the writer."""
    if not writer.is_closing():
        writer.write(_LENGTH.pack(len(message)) + message)


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield messages until the other side closes. Raises Violation for an invalid length."""
    while True:
        try:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > _MAX_MESSAGE_BYTES:
                raise Violation(f"a message of {length} bytes")
            yield await reader.readexactly(length)
        except asyncio.IncompleteReadError:
            return
