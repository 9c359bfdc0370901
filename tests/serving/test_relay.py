"""The content of a streamed response of the OpenAI API, and how its request ends."""

import asyncio
import json
from typing import Any

import pytest

from serving.openai import relay
from serving.openai.http_exchange import Response
from serving.openai.places import EndedRequest, Place
from serving.openai.recorder import Ending
from serving.openai.relay import Relay
from serving.replicas.connection import ReplicaLost
from serving.requests.results import Outcome

EVENT, DONE = b'data: {"choices": []}\n\n', b"data: [DONE]\n\n"
PLACE = Place(7, 1, 42)


def relay_of(body, finish, *, cancelled=None):
    async def cancellation():
        return cancelled

    response = Response(200, [(b"content-type", b"text/event-stream")], body)
    return Relay(b"", response, PLACE, 30.0, finish, cancellation)


def ending_at(pieces, last, *, is_cut=False):
    """Read a stream up to the piece `last`, leave, and return how its request ended."""
    endings, ended = [], []

    async def body():
        for piece in pieces:
            yield piece
        if is_cut:
            await asyncio.sleep(600)
        ended.append(True)

    async def read():
        content: Any = aiter(relay_of(body(), lambda place, status, ending: endings.append(ending)))
        async for piece in content:
            if piece == last:
                await content.aclose()
        return [*endings, *ended]

    return asyncio.run(read())


@pytest.mark.parametrize("done", [DONE, b"data: [DONE]\r\n\r\n"])
def test_client_that_leaves_at_the_last_event_has_a_complete_response(done):
    """The connection is read to its end, so that it can serve the next request."""
    assert ending_at([EVENT, EVENT, done], done) == [Outcome(7, 1), True]


def test_client_that_leaves_before_the_last_event_cancels_its_request():
    [ending] = ending_at([EVENT, EVENT + b" ", DONE], EVENT)
    assert ending == Ending(7, "cancelled", "client_left", "the connection to its client ended")


def test_replica_that_does_not_end_its_response_delays_the_last_event_little(monkeypatch):
    monkeypatch.setattr(relay, "DONE_SECONDS", 0.01)
    assert ending_at([EVENT, DONE], DONE, is_cut=True) == [Outcome(7, 1)]


@pytest.mark.parametrize(
    ("cancelled", "code", "text"),
    [
        (EndedRequest(7, "cancelled", "cancelled", ""), "cancelled", "the task was cancelled"),
        (EndedRequest(7, "cancelled", "not_permitted", "its caller may not"), "not_permitted", "its caller may not"),
        (None, "replica_lost", "why"),
    ],
)
def test_broken_stream_tells_whether_and_why_its_task_was_cancelled(cancelled, code, text):
    """A client repeats a request whose replica is lost, and must not repeat a cancelled one."""

    async def body():
        yield EVENT
        raise ReplicaLost("why")

    async def read():
        relayed = relay_of(body(), lambda place, status, ending: None, cancelled=cancelled)
        return [piece async for piece in relayed]

    first, last = asyncio.run(read())
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (first, error["code"], error["message"].endswith(text)) == (EVENT, code, True)
