"""The streams of one connection to the control plane. Whatever fails here ends one stream: never the connection, the
agent, or a report."""

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path

from gpusched.agent.streams import targets
from gpusched.agent.streams.connection import JobConnection
from gpusched.agent.streams.container_network import Networks
from gpusched.agent.threads import Lane
from gpusched.json_log import rank_fields
from gpusched.protocol import streams as frames
from gpusched.protocol.streams import Endpoint, Kind, Open, Reason, Turns, Violation

logger = logging.getLogger(__name__)
# After the end of a rank, for what its program wrote last.
LAST_SECONDS = 1.0
_count = 0  # of this process: its nodes share its file handles


class _Stream:
    """A stream, and its frames that wait for their turn. `connection`: None while it is being opened."""

    def __init__(self, stream_id: int, key: str) -> None:
        self.endpoint, self.key = Endpoint(stream_id), key
        self.connection: JobConnection | None = None
        self.opening: asyncio.Task[None] | None = None
        self.is_counted = False
        self.rank_ended_at: float | None = None

    @property
    def has_frame(self) -> bool:
        return self.endpoint.has_frame

    def next_frame(self) -> bytes:
        return self.endpoint.next_frame()

    @property
    def is_done(self) -> bool:
        return self.endpoint.is_over and not self.endpoint.has_frame


class Streams:
    """`find`: returns the directory of a rank that runs, by its key. All methods belong to the event loop."""

    def __init__(self, find: Callable[[str], Path | None], lane: Lane, node: str) -> None:
        self._find, self._lane, self._node = find, lane, node
        self._networks = Networks()
        self._streams: dict[int, _Stream] = {}
        self._turns = Turns()
        self._ready = asyncio.Event()

    def receive(self, message: bytes) -> None:
        """Take a frame of the server. Never raises."""
        try:
            stream_id, kind, payload = frames.decode(message)
        except Violation as error:  # a frame of a newer server
            logger.warning("%s: %s", self._node, error)
            return
        stream = self._streams.get(stream_id)
        try:
            if kind is Kind.OPEN:
                self._open(stream_id, frames.read_open(payload))
            elif stream is not None:
                stream.endpoint.receive(kind, payload)
                self._advance(stream)
        except Violation as error:
            self._fail(stream or self._refused(stream_id), Reason.VIOLATION, str(error))
        except Exception:
            logger.exception("%s: stream %d failed", self._node, stream_id)
            self._fail(stream or self._refused(stream_id), Reason.FAILED, "the agent failed; its log has more")

    async def next_frame(self) -> bytes:
        """Wait for the next frame to send; the streams take turns."""
        while not self._turns:
            self._ready.clear()
            await self._ready.wait()
        frame = self._turns.next_frame()
        stream = self._streams.get(int.from_bytes(frame[:4], "big"))
        if stream is not None and stream.is_done:
            self._advance(stream)
        return frame

    def end_with_ranks(self) -> None:
        """End the streams of ranks that have ended. What the program wrote last gets a moment to be sent."""
        now = time.monotonic()
        for stream in list(self._streams.values()):
            if self._find(stream.key) is None:
                stream.rank_ended_at = stream.rank_ended_at or now
                has_sent_all = stream.endpoint.is_ending and not stream.has_frame
                if has_sent_all or now - stream.rank_ended_at > LAST_SECONDS:
                    self._fail(stream, Reason.RANK_ENDED, f"rank {stream.key} has ended")

    def close(self) -> None:
        """End all streams: the connection to the server is gone."""
        for stream in list(self._streams.values()):
            stream.endpoint.abandon(Reason.SERVER_LOST)
            self._advance(stream)
            self._drop(stream)
        self._networks.close()

    def _open(self, stream_id: int, target: Open) -> None:
        if stream_id in self._streams:
            raise Violation(f"stream {stream_id} is open already")
        stream = self._streams[stream_id] = _Stream(stream_id, target.key)
        directory = self._find(target.key)
        if directory is None:
            self._fail(stream, Reason.NO_RANK, f"rank {target.key} does not run on this node")
        elif not _count_one():
            self._fail(stream, Reason.TOO_MANY, f"the agent carries its maximum of {_max_streams()} streams")
        else:
            stream.is_counted = True
            stream.opening = asyncio.create_task(self._connect(stream, directory, target))
            stream.opening.add_done_callback(lambda task: self._opened(stream, task))

    async def _connect(self, stream: _Stream, directory: Path, target: Open) -> None:
        connection = await targets.connect(self._lane, self._networks, directory, target)
        job = JobConnection(stream.endpoint, lambda: self._wake(stream))
        try:
            await asyncio.get_running_loop().create_connection(lambda: job, sock=connection)
        except BaseException:
            connection.close()
            raise
        stream.connection = job
        self._advance(stream)  # frames may have arrived meanwhile

    def _opened(self, stream: _Stream, task: "asyncio.Task[None]") -> None:
        """Refuse a stream whose opening failed, in whatever way."""
        if task.cancelled():
            self._fail(stream, Reason.FAILED, "opening the stream was cancelled")
        elif isinstance(error := task.exception(), targets.Refused):
            self._fail(stream, error.reason, error.detail)
        elif error is not None:
            about = rank_fields(stream.key, self._node)
            logger.error("%s: a stream cannot be opened: %r", stream.key, error, exc_info=error, extra=about)
            self._fail(stream, Reason.FAILED, "the agent failed; its log has more")

    def _refused(self, stream_id: int) -> _Stream:
        return _Stream(stream_id, "")

    def _fail(self, stream: _Stream, reason: Reason, detail: str) -> None:
        stream.endpoint.reset(reason, detail)
        self._advance(stream)

    def _advance(self, stream: _Stream) -> None:
        if stream.connection is not None:
            stream.connection.advance()
        self._wake(stream)

    def _wake(self, stream: _Stream) -> None:
        self._turns.add(stream)
        if stream.has_frame:
            self._ready.set()
        if stream.is_done:
            self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        self._turns.remove(stream)
        if self._streams.get(stream.endpoint.stream_id) is stream:
            del self._streams[stream.endpoint.stream_id]
        if stream.opening is not None and not stream.opening.done():
            stream.opening.cancel()
        if stream.is_counted:
            stream.is_counted = False
            _uncount_one()


def _max_streams() -> int:
    """Return the maximum number of streams: a part of the file handles that this process may have, so that the agent
    keeps enough for its work."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 100_000 if soft == resource.RLIM_INFINITY else max(16, soft // 4)


def _count_one() -> bool:
    global _count
    if _count >= _max_streams():
        return False
    _count += 1
    return True


def _uncount_one() -> None:
    global _count
    _count -= 1
