"""A byte stream to a rank, as the rest of the server uses it."""

import asyncio
from collections.abc import Callable

from gpusched.protocol.streams import MAX_DATA_BYTES, Endpoint, Kind, Open, Reason, Reset, StreamReset, Violation


class Stream:
    """An open stream. Use it in the event loop that opened it: one task may read while another writes.

    When the rank ends, or anything between here and the rank, reading and writing raise StreamReset with a reason; they
    never hang. Always close it: `async with`, or `close()`."""

    def __init__(self, opening: Open, stream_id: int, wake: Callable[[], None]) -> None:
        """`wake`: called when the stream may have frames to send, or is over."""
        self._endpoint = Endpoint(stream_id, opening)
        self._wake = wake
        self._changed = asyncio.Event()
        self.bytes_read = self.bytes_written = 0

    async def __aenter__(self) -> "Stream":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    async def read(self, limit: int = MAX_DATA_BYTES) -> bytes:
        """Return the next bytes, at most `limit`; empty at the end. Raises StreamReset."""
        while not (data := self._endpoint.read(limit)):
            if self._endpoint.is_at_end:
                return b""
            await self._change()
        self.bytes_read += len(data)
        self._wake()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; wait while the rank does not read them. Raises StreamReset."""
        view = memoryview(data)
        while view:
            while not self._endpoint.room:
                await self._change()
            size = min(self._endpoint.room, len(view))
            self._endpoint.write(view[:size])
            self.bytes_written += size
            self._wake()
            view = view[size:]

    def end(self) -> None:
        """Send nothing more; the rank can still answer."""
        self._endpoint.end()
        self._wake()

    def close(self, reason: Reason = Reason.CLOSED, detail: str = "") -> None:
        """End both directions now. Harmless when it is over already."""
        self._endpoint.reset(reason, detail)
        self._notify()

    async def opened(self, seconds: float) -> None:
        """Wait until the rank's program has accepted. Raises StreamReset, or TimeoutError after `seconds`."""
        async with asyncio.timeout(seconds):
            while not self._endpoint.is_open:
                await self._change()

    async def finished(self) -> None:
        """Wait until both directions have ended and everything was sent. Raises StreamReset."""
        while not self._endpoint.is_over or self._endpoint.over is not None:
            await self._change()

    @property
    def reset(self) -> Reset | None:
        """Return why the stream is over before both ends had finished; None if it is not."""
        return self._endpoint.over

    @property
    def is_open(self) -> bool:
        """Return whether the rank's program has accepted."""
        return self._endpoint.is_open

    @property
    def is_over(self) -> bool:
        return self._endpoint.is_over

    @property
    def is_quiet(self) -> bool:
        """Return whether both directions are open, and no byte waits to be read."""
        endpoint = self._endpoint
        return endpoint.is_open and not (endpoint.is_over or endpoint.is_at_end or endpoint.available)

    async def _change(self) -> None:
        if self._endpoint.over is not None:
            raise StreamReset(self._endpoint.over)
        self._changed.clear()
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._wake()

    # --- the connection that carries it ---

    @property
    def has_frame(self) -> bool:
        return self._endpoint.has_frame

    def next_frame(self) -> bytes:
        frame = self._endpoint.next_frame()
        if self._endpoint.is_over:
            self._changed.set()
        return frame

    @property
    def is_done(self) -> bool:
        return self._endpoint.is_over and not self._endpoint.has_frame

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Take a frame. One that breaks the protocol ends the stream."""
        try:
            self._endpoint.receive(kind, payload)
        except Violation as error:
            self._endpoint.reset(Reason.VIOLATION, f"the agent broke the protocol of streams: {error}")
        self._notify()

    def lose(self, reason: Reason, detail: str) -> None:
        """End it: the rank can no longer be reached."""
        self._endpoint.abandon(reason, detail)
        self._notify()
