"""One stream at the rank: copy bytes between the stream's endpoint and a connection to the job's program."""

import asyncio
from collections.abc import Callable
from typing import cast

from gpusched.protocol.streams import MAX_DATA_BYTES, Endpoint, Reason

CLOSED = "the program in the job closed the connection"
# Reads of the event loop are one after the other, and each is copied at once.
_BUFFER = memoryview(bytearray(MAX_DATA_BYTES))


class JobConnection(asyncio.BufferedProtocol):
    """Reads from the program no more than the stream may send, so a slow reader at the other end stops the program
    itself. Returns credit only for what the program's connection has taken."""

    def __init__(self, endpoint: Endpoint, wake: Callable[[], None]) -> None:
        self._endpoint, self._wake = endpoint, wake
        self._transport: asyncio.Transport | None = None
        self._is_full = self._is_reading_paused = self._has_written_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_DATA_BYTES)
        self._endpoint.accept()
        self.advance()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER[: max(1, self._endpoint.room)]  # reading is paused without room

    def buffer_updated(self, nbytes: int) -> None:
        self._endpoint.write(_BUFFER[:nbytes])
        self.advance()

    def eof_received(self) -> bool:
        self._endpoint.end()
        self.advance()
        return True  # the other direction goes on

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.advance()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._endpoint.reset(Reason.BROKEN, CLOSED)
        self._wake()

    def advance(self) -> None:
        """Move on after a frame has arrived or was sent, and after the program's connection has changed."""
        endpoint, transport = self._endpoint, self._transport
        if transport is None:
            return
        while endpoint.available and not self._is_full:
            transport.write(endpoint.read(MAX_DATA_BYTES))
        if endpoint.is_at_end and not self._has_written_end:
            self._has_written_end = True
            try:
                transport.write_eof()
            except OSError:  # the program has closed its end already
                endpoint.reset(Reason.BROKEN, CLOSED)
        if endpoint.over is not None:
            transport.abort()
        elif endpoint.is_over:
            transport.close()
        else:
            self._pace()
        self._wake()

    def _pace(self) -> None:
        transport, endpoint = self._transport, self._endpoint
        if transport is None or (endpoint.room > 0) != self._is_reading_paused:
            return
        self._is_reading_paused = not self._is_reading_paused
        if self._is_reading_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()
