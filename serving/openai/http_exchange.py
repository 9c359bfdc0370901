"""HTTP over a stream into a job: send a request, read its response piece by piece, and send the next one."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import h11

MAX_STATUS = 599
Headers = Sequence[tuple[bytes, bytes]]


class Stream(Protocol):
    """Bytes to and from a port of a job. `read` returns b"" at the end. `is_quiet`: open, and nothing has arrived."""

    async def read(self) -> bytes: ...

    async def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    @property
    def is_quiet(self) -> bool: ...


class BadResponse(Exception):
    """The program answered with something else than HTTP, or ended in the middle of a response."""


@dataclass(frozen=True)
class Response:
    """A response whose body is read with `body`, once, to its end. Names of headers are in lower case."""

    status: int
    headers: Headers
    body: AsyncIterator[bytes]

    @property
    def is_event_stream(self) -> bool:
        return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers)


class HttpConnection:
    """A stream that carries one request after the other. `is_silent`: nothing has arrived since the latest one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self.is_silent = True

    async def exchange(self, method: str, path: str, headers: Headers, body: bytes) -> Response:
        """Send a request and return its response as soon as its head has arrived. Raises BadResponse, and what the
        stream raises."""
        self.is_silent = True
        own = [(b"host", b"replica"), (b"content-length", b"%d" % len(body))]
        request = h11.Request(method=method, target=path, headers=[*own, *headers])
        events = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        await self._stream.write(b"".join(self._http.send(event) or b"" for event in events))
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Response):
                if event.status_code > MAX_STATUS:
                    raise BadResponse(f"the program answered with the status {event.status_code}, which does not exist")
                return Response(event.status_code, list(event.headers), self._body())

    def renew(self) -> bool:
        """Prepare for the next request. Return whether there may be one: the response was read to its end, and the
        program keeps the connection."""
        states = self._http.our_state, self._http.their_state
        if states == (h11.DONE, h11.DONE) and not self._http.trailing_data[0]:
            self._http.start_next_cycle()
        return self._http.our_state is h11.IDLE and self._stream.is_quiet

    def close(self) -> None:
        self._stream.close()

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    async def _next_event(self) -> object:
        """Return the next event that is not about missing bytes."""
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise BadResponse(str(error)) from error
            if event is h11.NEED_DATA:
                data = await self._stream.read()
                self.is_silent &= not data
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise BadResponse("the program closed the connection before its response")
                self._http.receive_data(data)
            else:
                return event
