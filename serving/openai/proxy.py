"""Forward a request of the OpenAI API to a replica, and its response to the client as it arrives."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import events
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from serving.openai.balancer import Balancer, Place
from serving.openai.errors import error_response
from serving.openai.http_exchange import BadResponse, exchange
from serving.replicas.connection import Stream
from serving.requests import claims, endings, results
from serving.requests.results import Outcome

logger = logging.getLogger(__name__)
# A replica that cannot be reached, or breaks before its response, is replaced by another one this often.
MAX_TRIES = 3
_PASSED_ON = frozenset({b"content-type", b"content-encoding", b"cache-control", b"retry-after"})
_threads = ThreadPoolExecutor(2, thread_name_prefix="openai-outcomes")
OpenPort = Callable[[int, int], Awaitable[Stream]]


@dataclass(frozen=True)
class Forwarded:
    """A queued request: `request_id` is its row. `headers`: of the answer."""

    request_id: int
    endpoint_id: int
    endpoint: str
    port: int
    timeout_seconds: float
    path: str
    body: bytes
    accept: str
    headers: dict[str, str]


class Proxy:
    """`open_port` opens a stream to a port of a job; `dispatcher` returns the id of this web process's lease."""

    def __init__(self, balancer: Balancer, open_port: OpenPort, dispatcher: Callable[[], int | None]) -> None:
        self._balancer, self._open_port, self._dispatcher = balancer, open_port, dispatcher

    async def forward(self, request: Forwarded) -> HttpResponseBase:
        """Return the replica's response, or an error in the form of the OpenAI API."""
        is_settled = False
        try:
            for _ in range(MAX_TRIES):
                try:
                    place = await self._balancer.place(request.endpoint_id, request.request_id, request.timeout_seconds)
                except TimeoutError:
                    break
                try:
                    response = await self._response(request, place)
                except (Problem, OSError, BadResponse) as error:
                    logger.info("replica %d of endpoint %s failed: %s", place.job_id, request.endpoint, error)
                    await self._return(place)
                else:
                    is_settled = True
                    return response
            detail = f"no replica of '{request.endpoint}' answered within {request.timeout_seconds:g} s"
            return error_response(503, "no_replica", detail, {**request.headers, "Retry-After": "1"})
        finally:
            if not is_settled:
                await _in_thread(partial(endings.cancel, [request.request_id]))

    async def _response(self, request: Forwarded, place: Place) -> HttpResponseBase:
        stream = await self._open_port(place.job_id, request.port)
        try:
            sent = [(b"content-type", b"application/json"), (b"accept", request.accept.encode("latin-1"))]
            method = "POST" if request.body else "GET"
            response = await exchange(stream, method, request.path, sent, request.body)
        except BaseException:
            stream.close()
            raise
        headers = {**request.headers, "X-Accel-Buffering": "no", "X-Replica-Job": str(place.job_id)}
        headers |= {n.decode("latin-1"): v.decode("latin-1") for n, v in response.headers if n in _PASSED_ON}
        content = self._content(place, stream, response.status, response.body)
        return StreamingHttpResponse(content, status=response.status, headers=headers)

    async def _content(
        self, place: Place, stream: Stream, status: int, body: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        outcome = Outcome(
            place.request, place.attempt, error_code="client_left", error="the client closed the connection"
        )
        try:
            async for piece in body:
                yield piece
            is_success = status < 500
            outcome = Outcome(place.request, place.attempt, error_code="" if is_success else f"http_{status}")
        except (OSError, BadResponse) as error:
            outcome = Outcome(place.request, place.attempt, error_code="replica_lost", error=str(error))
            raise
        finally:
            stream.close()
            await _in_thread(partial(_record, outcome))
            self._balancer.wake()

    async def _return(self, place: Place) -> None:
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            work = partial(claims.return_to_queue, dispatcher, {place.request: place.attempt}, alone=False)
            await _in_thread(work)


def _record(outcome: Outcome) -> None:
    if ended := results.record([outcome]):
        events.changed("tasks", ended)


async def _in_thread(work: Callable[[], object]) -> None:
    """Run database work whose failure leaves the request to the upkeep: it expires, or returns with the lease."""
    try:
        await run_in_thread(_threads, work)
    except (DatabaseAway, WorkFailed) as error:
        logger.warning("the outcome of a request is not recorded: %s", error)


def models_response(names: list[str]) -> HttpResponse:
    """Return the list of models, as GET /v1/models has it."""
    import msgspec

    models = [{"id": name, "object": "model", "created": 0, "owned_by": "gpusched"} for name in names]
    return HttpResponse(msgspec.json.encode({"object": "list", "data": models}), content_type="application/json")
