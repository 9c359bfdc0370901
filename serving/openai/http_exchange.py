"""Send one HTTP request over a stream into a job, and read its response piece by piece."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import h11

from serving.replicas.connection import Stream

Headers = Sequence[tuple[bytes, bytes]]


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


async def exchange(stream: Stream, method: str, path: str, headers: Headers, body: bytes) -> Response:
    """Send a request and return its response as soon as its head has arrived. Raises BadResponse, and what the stream
    raises."""
    connection = h11.Connection(h11.CLIENT)
    own = [(b"host", b"replica"), (b"connection", b"close"), (b"content-length", b"%d" % len(body))]
    request = h11.Request(method=method, target=path, headers=[*own, *headers])
    events = [request, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
    await stream.write(b"".join(connection.send(event) or b"" for event in events))
    while True:
        event = await _next_event(connection, stream)
        if isinstance(event, h11.Response):
            return Response(event.status_code, list(event.headers), _body(connection, stream))


async def _body(connection: h11.Connection, stream: Stream) -> AsyncIterator[bytes]:
    while True:
        event = await _next_event(connection, stream)
        if isinstance(event, h11.Data):
            yield bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return


async def _next_event(connection: h11.Connection, stream: Stream) -> object:
    """Return the next event that is not about missing bytes."""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            raise BadResponse(str(error)) from error
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.read())
        elif isinstance(event, h11.ConnectionClosed):
            raise BadResponse("the program closed the connection before its response")
        else:
            return event
