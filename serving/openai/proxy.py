"""Forward a request of the OpenAI API to a replica, and its response to the client as it arrives."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from django.http import HttpResponse
from django.http.response import HttpResponseBase, StreamingHttpResponse

from gpusched.lib.bus.listener import Listener, listener
from gpusched.lib.db.threads import DatabaseAway, WorkFailed, run_in_thread
from serving.openai import places
from serving.openai.balancer import Balancer
from serving.openai.connections import Connections
from serving.openai.errors import error_response
from serving.openai.http_exchange import BadResponse, HttpConnection, Response
from serving.openai.measurements import Measurements
from serving.openai.places import EndedRequest, Place
from serving.openai.recorder import Ending, FailedReplica, Recorder
from serving.openai.relay import Relay, client_left, outcome_of
from serving.replicas.connection import ReplicaHung, ReplicaLost, ReplicaUnreachable
from serving.requests.results import Outcome
from tenants.auth.page_access import Credential

logger = logging.getLogger(__name__)
# A request whose replica cannot be reached, or breaks before its response, goes to this many replicas.
MAX_TRIES = 3
# If there is no other replica than one that cannot be reached: its agent may be about to connect again.
PAUSE_SECONDS = 0.5
# A response up to this size is complete before the client gets any of it, so that its replica may still break.
MAX_BUFFERED_BYTES = 1 << 20
# Most requests end before their callers' rights are checked again.
UNCHECKED_SECONDS = 1.0
_PASSED_ON = frozenset({b"content-type", b"content-encoding", b"cache-control", b"retry-after"})
# The status and code of requests that ended while they waited. Clients repeat those with 409, 429 and from 500 on.
_OF_STATES = {"expired": (503, "no_replica"), "cancelled": (400, "cancelled"), "refused": (404, "model_not_found")}
_OF_CODES = {"not_permitted": (403, "not_permitted")}


@dataclass(frozen=True)
class Forwarded:
    """A request with a row: a queued one, or one that has its `place` already. `headers`: of the answer. `credential`:
    of the caller, who may lose the right to the endpoint before the response ends."""

    request_id: int
    endpoint_id: int
    endpoint: str
    port: int
    max_batch: int
    cost: float
    timeout_seconds: float
    path: str
    body: bytes
    accept: str
    headers: Mapping[str, str]
    place: Place | None = None
    credential: Credential | None = None


class _InFlight:
    """A request between its row and its ending."""

    def __init__(self, credential: Credential | None) -> None:
        self.credential, self.began = credential, time.monotonic()
        self.connection: HttpConnection | None = None
        self.is_aborted = False

    def abort(self) -> None:
        """Stop the replica's work: a user has cancelled the request."""
        self.is_aborted = True
        if self.connection is not None:
            self.connection.close()

    def forget_connection(self) -> None:
        """Begin another try."""
        self.connection = None

    def use(self, connection: HttpConnection) -> None:
        """Send the request over this connection. Raises ReplicaLost if it is cancelled already."""
        self.connection = connection
        if self.is_aborted:
            raise ReplicaLost("the request was cancelled")


class Proxy:
    """All state belongs to the event loop."""

    def __init__(
        self,
        balancer: Balancer,
        recorder: Recorder,
        measurements: Measurements,
        connections: Connections,
        notifications: Listener = listener,
    ) -> None:
        self._balancer, self._recorder, self._connections = balancer, recorder, connections
        self._measurements, self._notifications = measurements, notifications
        self._in_flight: dict[int, _InFlight] = {}
        self._is_subscribed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="openai")

    def in_flight(self) -> set[int]:
        """Return the requests whose ending this process will record."""
        return set(self._in_flight)

    def unchecked(self) -> dict[int, Credential]:
        """Return the credentials of requests in flight whose callers may have lost the right to them meanwhile."""
        before = time.monotonic() - UNCHECKED_SECONDS
        flights = self._in_flight.items()
        return {number: each.credential for number, each in flights if each.credential and each.began <= before}

    async def forward(self, request: Forwarded) -> HttpResponseBase:
        """Return the replica's response, or an error in the form of the OpenAI API."""
        if not self._is_subscribed:
            self._is_subscribed = True
            self._notifications.subscribe(self._on_change)
        self._in_flight[request.request_id] = _InFlight(request.credential)
        ending: Outcome | Ending | None = client_left(request.request_id)
        try:
            response, ending = await self._forward(request)
            return response
        except Exception:
            ending = Ending(request.request_id, "failed", "internal_error", "the server failed on this request")
            raise
        finally:
            if ending is not None:
                self._settle(request, ending)

    async def _forward(self, request: Forwarded) -> tuple[HttpResponseBase, Outcome | Ending | None]:
        """Return the response, and how the request ended; None: it ends with the response."""
        deadline = time.monotonic() + request.timeout_seconds
        place: Place | EndedRequest | None = request.place
        lost, tried, is_unreachable, is_again = "", set[int](), False, False
        for _ in range(MAX_TRIES):
            if is_again:
                await asyncio.sleep(PAUSE_SECONDS)
            try:
                place = place or await self._place(request, deadline)
            except TimeoutError:
                return self._expired(request)
            if isinstance(place, EndedRequest):
                return self._ended_elsewhere(request, place), None
            try:
                return await self._respond(request, place)
            except ReplicaHung as error:
                return self._hung(request, place, str(error))
            except (ReplicaLost, BadResponse) as error:
                lost, is_unreachable = str(error), isinstance(error, ReplicaUnreachable)
                is_again = is_unreachable and place.job_id in tried
                tried.add(place.job_id)
            if self._in_flight[request.request_id].is_aborted:
                return self._ended_elsewhere(request, await self._end_of(request)), None
            logger.info("replica %d of endpoint %s failed: %s", place.job_id, request.endpoint, lost)
            if not await self._give_back(place, is_unreachable):
                break
            place = None
        if is_unreachable:
            return self._unreachable(request, lost)
        ending = Ending(request.request_id, "failed", "replica_lost", lost)
        return self._error(request, 502, "replica_lost", f"its replica failed: {lost}"), ending

    def _expired(self, request: Forwarded) -> tuple[HttpResponse, Ending]:
        text = f"no replica took the request within timeout_seconds ({request.timeout_seconds:g})"
        return self._error(request, 503, "no_replica", text), Ending(request.request_id, "expired", "expired", text)

    def _unreachable(self, request: Forwarded, why: str) -> tuple[HttpResponse, Ending]:
        text = f"{why}; try again, or at the other head if there are two"
        ending = Ending(request.request_id, "failed", "replica_unreachable", text)
        return self._error(request, 503, "replica_unreachable", text), ending

    def _hung(self, request: Forwarded, place: Place, text: str) -> tuple[HttpResponse, Outcome]:
        self._recorder.put(FailedReplica(place.job_id))
        outcome = Outcome(place.request, place.attempt, error_code="timeout", error=text)
        return self._error(request, 504, "timeout", text), outcome

    async def _place(self, request: Forwarded, deadline: float) -> Place | EndedRequest:
        return await self._balancer.place(request.endpoint_id, request.request_id, deadline - time.monotonic())

    async def _give_back(self, place: Place, is_unreachable: bool) -> bool:
        """Return the request to the queue. Return whether that worked."""
        try:
            await run_in_thread(self._thread, partial(places.give_back, place, is_unreachable=is_unreachable))
        except (DatabaseAway, WorkFailed):
            return False
        return True

    async def _respond(self, request: Forwarded, place: Place) -> tuple[HttpResponseBase, Outcome | Ending | None]:
        """Return the response of this replica. Raises ReplicaLost, ReplicaHung and BadResponse."""
        flight = self._in_flight[request.request_id]
        flight.forget_connection()
        began, is_relayed = time.monotonic(), False
        try:
            async with asyncio.timeout(request.timeout_seconds):
                response = await self._connections.exchange(
                    place.job_id, request.port, request.path, _sent(request), request.body, flight.use
                )
                places.answered(place.job_id, response.status)
                first, is_complete = (b"", False) if response.is_event_stream else await _start_of(response)
            headers = _answer_headers(request, response, place)
            if is_complete:
                self._measurements.ended(place.job_id, request, time.monotonic() - began, response.status)
                return HttpResponse(first, status=response.status, headers=headers), outcome_of(place, response.status)
            finish = self._finish(request, began)
            relay = Relay(
                first, response, place, request.timeout_seconds, finish, partial(self._cancellation, request, flight)
            )
            is_relayed = True
            return StreamingHttpResponse(relay, status=response.status, headers=headers), None
        except TimeoutError as error:
            raise ReplicaHung(f"the replica did not answer within {request.timeout_seconds:g} s") from error
        finally:
            if flight.connection is not None and not is_relayed:
                self._connections.keep(place.job_id, flight.connection)

    def _finish(self, request: Forwarded, began: float) -> Callable[[Place, int, Outcome | Ending], None]:
        def finish(place: Place, status: int, ending: Outcome | Ending) -> None:
            flight = self._in_flight[request.request_id]
            assert flight.connection is not None
            self._connections.keep(place.job_id, flight.connection)
            self._measurements.ended(place.job_id, request, time.monotonic() - began, status)
            if flight.is_aborted:
                ending = Ending(request.request_id, "cancelled", "cancelled", "")
            if isinstance(ending, Outcome) and ending.error_code in ("replica_lost", "timeout"):
                self._recorder.put(FailedReplica(place.job_id))
            self._settle(request, ending)

        return finish

    def _settle(self, request: Forwarded, ending: Outcome | Ending) -> None:
        self._in_flight.pop(request.request_id, None)
        self._recorder.put(ending)

    def _on_change(self, changed: dict[str, list[int]]) -> None:
        """Abort requests that ended elsewhere: those that end here are no longer in flight when their end is known."""
        for request_id in changed.get("tasks", ()):
            if (flight := self._in_flight.get(request_id)) is not None:
                flight.abort()

    def _error(self, request: Forwarded, status: int, code: str, text: str) -> HttpResponse:
        headers = {**request.headers, **({"Retry-After": "1"} if status == 503 else {})}
        return error_response(status, code, f"model '{request.endpoint}': {text}", headers=headers)

    async def _end_of(self, request: Forwarded) -> EndedRequest:
        """Return how an aborted request has ended."""
        try:
            ended = await run_in_thread(self._thread, partial(places.ended, [request.request_id]))
        except (DatabaseAway, WorkFailed):
            ended = []
        return ended[0] if ended else EndedRequest(request.request_id, "cancelled", "cancelled", "")

    async def _cancellation(self, request: Forwarded, flight: _InFlight) -> EndedRequest | None:
        return await self._end_of(request) if flight.is_aborted else None

    def _ended_elsewhere(self, request: Forwarded, ended: EndedRequest) -> HttpResponse:
        """Return the error of a request that expired, was cancelled, or was refused with its endpoint."""
        self._in_flight.pop(request.request_id, None)
        status, code = _OF_CODES.get(ended.code) or _OF_STATES.get(ended.state, (503, ended.state))
        why = f" ({ended.error})" if ended.error else ""
        return self._error(request, status, code, f"the request was {ended.state}{why}")


def _sent(request: Forwarded) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"accept", request.accept.encode("latin-1", "replace"))]


def _answer_headers(request: Forwarded, response: Response, place: Place) -> dict[str, str]:
    passed_on = {n.decode("latin-1"): v.decode("latin-1") for n, v in response.headers if n in _PASSED_ON}
    return {**request.headers, "X-Accel-Buffering": "no", "X-Replica-Job": str(place.job_id), **passed_on}


async def _start_of(response: Response) -> tuple[bytes, bool]:
    """Return the body, or its start if it is long, and whether it is complete."""
    start = bytearray()
    async for piece in response.body:
        start += piece
        if len(start) > MAX_BUFFERED_BYTES:
            return bytes(start), False
    return bytes(start), True
