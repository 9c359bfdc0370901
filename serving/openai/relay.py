"""The content of a response that is passed on as it arrives, and how its request ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import msgspec

from gpusched.lib.web.deferred import BrokenResponse
from serving.openai.http_exchange import BadResponse, Response
from serving.openai.places import EndedRequest, Place
from serving.openai.recorder import Ending
from serving.replicas.connection import ReplicaLost
from serving.requests.results import Outcome

Finish = Callable[[Place, int, Outcome | Ending], None]
_END_OF_EVENT = (b"\n\n", b"\r\n\r\n")
_DONE = tuple(b"data: [DONE]" + end for end in _END_OF_EVENT)
# For the end of the response after its last event.
DONE_SECONDS = 0.1


def client_left(request_id: int) -> Ending:
    """Return the ending of a request whose connection to its client has ended, also because this process stops."""
    return Ending(request_id, "cancelled", "client_left", "the connection to its client ended")


def outcome_of(place: Place, status: int) -> Outcome:
    """Return the outcome of a request with a complete response. One with an error costs nothing."""
    return Outcome(place.request, place.attempt, error_code="" if status < 400 else f"http_{status}")


class Relay:
    """The pieces of a response, for a StreamingHttpResponse. Calls `finish` once, at the end or when it is closed.
    `cancellation` returns how the task was cancelled, if the connection to the replica was closed for that."""

    def __init__(
        self,
        first: bytes,
        response: Response,
        place: Place,
        timeout_seconds: float,
        finish: Finish,
        cancellation: Callable[[], Awaitable[EndedRequest | None]],
    ) -> None:
        self._first, self._response, self._place = first, response, place
        self._timeout_seconds, self._finish, self._cancellation = timeout_seconds, finish, cancellation
        self._is_finished = False
        self._is_between_events = True
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    def close(self) -> None:
        """End the request if its content was not read to the end. Django calls it in a thread."""
        self._loop.call_soon_threadsafe(self._end, client_left(self._place.request))

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces. A broken event stream ends with an event that has the error, any other one raises."""
        ending: Outcome | Ending = client_left(self._place.request)
        try:
            if self._first:
                yield self._first
            pieces = aiter(self._response.body)
            while (piece := await self._next(pieces)) is not None:
                self._is_between_events = piece.endswith(_END_OF_EVENT)
                if self._response.is_event_stream and piece.endswith(_DONE):
                    # Clients leave at this event. The request is complete, and its connection can serve the next one.
                    await self._read_end(pieces)
                    self._end(outcome_of(self._place, self._response.status))
                    yield piece
                    return
                yield piece
            ending = outcome_of(self._place, self._response.status)
        except (ReplicaLost, BadResponse, TimeoutError) as error:
            code, text = await self._cause(error)
            ending = Outcome(self._place.request, self._place.attempt, error_code=code, error=text)
            self._end(ending)
            if not (self._response.is_event_stream and self._is_between_events):
                raise BrokenResponse(text) from error
            yield _error_event(code, text)
        finally:
            self._end(ending)

    async def _cause(self, error: Exception) -> tuple[str, str]:
        """Return the code and the text of a response that broke."""
        if cancelled := await self._cancellation():
            return cancelled.code, cancelled.error or "the task was cancelled"
        if isinstance(error, TimeoutError):
            return "timeout", f"the replica sent nothing for {self._timeout_seconds:g} s"
        return "replica_lost", str(error)

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        async with asyncio.timeout(self._timeout_seconds):
            return await anext(pieces, None)

    async def _read_end(self, pieces: AsyncIterator[bytes]) -> None:
        with suppress(ReplicaLost, BadResponse, TimeoutError):
            async with asyncio.timeout(DONE_SECONDS):
                await anext(pieces, None)

    def _end(self, ending: Outcome | Ending) -> None:
        if not self._is_finished:
            self._is_finished = True
            self._finish(self._place, self._response.status, ending)


def _error_event(code: str, text: str) -> bytes:
    error = {"message": f"the response is incomplete: {text}", "type": "server_error", "param": None, "code": code}
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
