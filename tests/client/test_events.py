"""Following the events of all jobs, by the SDK and the command: in order, over breaks, from the last position."""

import asyncio
import json
from typing import Any

import pytest

from gpusched.client import AsyncClient, Client
from gpusched.client.transport import polling
from gpusched.protocol.rest.events import JobEvent
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, Request, problem, sequence


def event(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "at": "2030-01-01T10:00:00Z",
        "kind": "started",
        "job_id": 40 + number,
        "tenant": "nlp",
        **more,
    }


class Feed:
    """Answers like the server: two events at a time, and a break at every third request."""

    def __init__(self, server: FakeServer, *numbers: int) -> None:
        self.numbers, self.requests = numbers, 0
        server.on("GET", "/events", self)

    def __call__(self, request: Request) -> Answer:
        self.requests += 1
        if self.requests % 3 == 0:
            return Answer(0) if self.requests % 2 else problem(503, "starting", "starts")
        since = int(request.query["since"])
        numbers_after = [number for number in self.numbers if number > since][:2]
        last = numbers_after[-1] if numbers_after else since
        more = any(number > last for number in self.numbers)
        return Answer(200, {"items": [event(n) for n in numbers_after], "next_since": last, "more": more})


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "QUICK_SECONDS", 0.001)
    monkeypatch.setattr("gpusched.client.transport.retries._FIRST_PAUSE_SECONDS", 0.001)


NUMBERS = (1, 2, 3, 5, 8, 13, 21)


def test_following_skips_and_repeats_no_event_over_breaks(server: FakeServer) -> None:
    Feed(server, *NUMBERS)
    with Client(server.url) as client:
        following = client.events(since=0)
        assert [next(following).id for _ in NUMBERS] == list(NUMBERS)
        assert [item.id for item in client.events(since=5, follow=False)] == [8, 13, 21]


def test_following_from_now_on_misses_no_event_when_the_first_poll_breaks(server: FakeServer) -> None:
    newest = 5

    def answer(request: Request) -> Answer:
        nonlocal newest
        since = int(request.query.get("since", newest))
        if "wait" in request.query and newest == 5:
            newest = 6  # an event happens while the reader waits, and the server restarts
            return Answer(0)
        numbers = [99] if len(server.requests) > 10 else range(since + 1, newest + 1)
        return Answer(200, {"items": [event(n) for n in numbers], "next_since": newest, "more": False})

    server.on("GET", "/events", answer)
    with Client(server.url) as client:
        assert next(client.events()).id == 6


def test_following_continues_from_the_servers_position(server: FakeServer) -> None:
    """From now on, and past what is others' to see: what comes between two requests is not missed."""
    nothing = {"items": [], "more": False}
    numbers_after = {"items": [event(9)], "next_since": 9, "more": False}
    pages = [{**nothing, "next_since": 5}, {**nothing, "next_since": 7}, numbers_after]
    server.on("GET", "/events", sequence(*(Answer(200, page) for page in pages)))
    with Client(server.url) as client:
        assert next(client.events()).id == 9
    assert [request.query.get("since") for request in server.requests] == [None, "5", "7"]


def test_async_client_follows_in_the_same_way(server: FakeServer) -> None:
    Feed(server, *NUMBERS)

    async def follow() -> list[JobEvent]:
        async with AsyncClient(server.url) as client:
            return [item async for item in client.events(since=2, follow=False)]

    assert [item.id for item in asyncio.run(follow())] == [3, 5, 8, 13, 21]


def test_following_sends_long_polls_with_the_filters(server: FakeServer) -> None:
    server.on("GET", "/events", Answer(200, {"items": [event(9)], "next_since": 9, "more": False}))
    with Client(server.url) as client:
        assert next(client.events(2, tenant="nlp", kind="ended")).job_id == 49
        list(client.events(3, follow=False))
    assert server.requests[0].query == {"since": "2", "wait": "20", "tenant": "nlp", "kind": "ended", "limit": "1000"}
    assert server.requests[1].query == {"since": "3", "limit": "1000"}


def test_events_command_prints_a_line_per_event(server: FakeServer) -> None:
    server.on("GET", "/events", Answer(200, {"items": [event(9, name="a\x1bb", actor="ada")], "next_since": 9}))
    server.routes["GET", "/api/v1/events"] = first_then_refused(server)
    output = call(server.url, "events")
    assert output.stdout == "9  10:00:00  nlp  job 49 a\\x1bb: started by ada\n"
    assert output.exit_code == 4
    lines = call(server.url, "events", "-o", "jsonl").stdout
    assert lines == ""
    assert call(server.url, "events", "-o", "json").exit_code == 2


def first_then_refused(server: FakeServer) -> Any:
    """The token is revoked while it follows: the command ends with 4 (A58)."""
    answers = [server.routes["GET", "/api/v1/events"], problem(401, "not_authenticated", "the token has been revoked")]
    return lambda request: answers.pop(0) if len(answers) > 1 else answers[0]


def test_events_once_prints_existing_events(server: FakeServer) -> None:
    Feed(server, 1, 2)
    result = call(server.url, "events", "--since", "0", "--once", "-o", "jsonl")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == [1, 2]
