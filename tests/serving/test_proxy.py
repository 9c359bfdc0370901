"""A request of the OpenAI API at replicas that this web process cannot reach, because another head has their agents."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus.listener import Listener
from serving import web
from serving.openai import places
from serving.openai.http_exchange import Response
from serving.openai.measurements import Measurements
from serving.openai.places import EndedRequest, Place
from serving.openai.proxy import Forwarded, Proxy
from serving.replicas.connection import ReplicaLost, ReplicaUnreachable
from serving.requests.results import Outcome

PATH = "/v1/chat/completions"


@dataclass
class Replicas:
    """The places that a request gets, one after the other, and the replicas (by job) that answer."""

    jobs: list[int]
    answering: tuple[int, ...] = ()
    error: type[ReplicaLost] = ReplicaUnreachable
    recorded: list[Any] = field(default_factory=list)
    tried: list[int] = field(default_factory=list)
    given_back: list[tuple[int, bool]] = field(default_factory=list)

    async def place(self, endpoint_id, request_id, seconds):
        return Place(request_id, len(self.tried) + 1, self.jobs[len(self.tried)])

    async def exchange(self, job_id, port, path, headers, body, use):
        self.tried.append(job_id)
        if job_id not in self.answering:
            raise self.error(f"no way to {job_id}")
        return Response(200, [], self.body())

    async def body(self):
        yield b"answer"

    def put(self, entry):
        self.recorded.append(entry)

    def give_back(self, place, *, is_unreachable):
        self.given_back.append((place.job_id, is_unreachable))


@pytest.fixture
def forward(monkeypatch):
    pauses = []

    async def pause(seconds):
        pauses.append(seconds)

    def run(replicas):
        monkeypatch.setattr(places, "give_back", replicas.give_back)
        monkeypatch.setattr("serving.openai.proxy.asyncio.sleep", pause)
        request = Forwarded(7, 1, "chat", 8000, 4, 1.0, 30.0, PATH, b"{}", "*/*", {})
        mine = Proxy(replicas, replicas, Measurements(), replicas, Listener())
        return asyncio.run(mine.forward(request)), len(pauses)

    return run


def test_request_goes_to_a_replica_that_can_be_reached_without_a_pause(forward):
    replicas = Replicas([11, 12], answering=(12,))
    response, pauses = forward(replicas)
    assert (response.status_code, response.content, pauses) == (200, b"answer", 0)
    assert replicas.given_back == [(11, True)]
    assert replicas.recorded == [Outcome(7, 2)]


def test_places_learn_the_status_of_each_response(forward, monkeypatch):
    learned = []
    monkeypatch.setattr(places, "answered", lambda *answer: learned.append(answer))
    replicas = Replicas([11, 12], answering=(12,))
    forward(replicas)
    assert learned == [(12, 200)]


def test_request_without_a_replica_that_can_be_reached_is_refused_for_now(forward):
    replicas = Replicas([11, 11, 11])
    response, pauses = forward(replicas)
    error = json.loads(response.content)["error"]
    assert (response.status_code, response["Retry-After"], error["code"]) == (503, "1", "replica_unreachable")
    assert "no way to 11; try again, or at the other head" in error["message"]
    assert (replicas.given_back, pauses) == ([(11, True)] * 3, 1)
    [ending] = replicas.recorded
    assert (ending.state, ending.code) == ("failed", "replica_unreachable")


def test_request_whose_replicas_break_fails(forward):
    replicas = Replicas([11, 12, 13], error=ReplicaLost)
    response, pauses = forward(replicas)
    assert (response.status_code, pauses) == (502, 0)
    assert replicas.given_back == [(11, False), (12, False), (13, False)]


def test_caller_is_checked_again_when_the_request_takes_longer(monkeypatch):
    """Most requests are short, and a check costs a query for each caller."""
    replicas: Any = Replicas([11], answering=(11,))
    observed = []
    mine = Proxy(replicas, replicas, Measurements(), replicas, Listener())

    async def body():
        observed.append(mine.unchecked())
        monkeypatch.setattr("serving.openai.proxy.UNCHECKED_SECONDS", 0.0)
        observed.append(mine.unchecked())
        yield b"answer"

    replicas.body = body
    request = Forwarded(7, 1, "chat", 8000, 4, 1.0, 30.0, PATH, b"{}", "*/*", {}, credential="Bearer x")
    asyncio.run(mine.forward(request))
    assert [*observed, mine.unchecked()] == [{}, {7: "Bearer x"}, {}]


@pytest.mark.parametrize(("code", "kind"), [("node_unreachable", ReplicaUnreachable), ("not_listening", ReplicaLost)])
def test_port_of_a_node_without_an_agent_here_is_unreachable(monkeypatch, code, kind):
    async def refuse(job_id, *, port):
        raise Problem(503, code, "why")

    monkeypatch.setattr(web, "open_stream", refuse)
    with pytest.raises(ReplicaLost, match="why") as caught:
        asyncio.run(web.open_port(1, 8000))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("code", "error", "status", "text"),
    [
        ("cancelled", "", 400, "the request was cancelled"),
        ("not_permitted", "its caller may not", 403, "the request was cancelled (its caller may not)"),
    ],
)
def test_request_that_is_cancelled_before_its_response_says_why(monkeypatch, code, error, status, text):
    class Cancelled(Replicas):
        def subscribe(self, on_change):
            self.on_change = on_change

        async def exchange(self, *arguments):
            self.on_change({"tasks": [7]})
            return await super().exchange(*arguments)

    replicas: Any = Cancelled([11], error=ReplicaLost)
    monkeypatch.setattr(places, "ended", lambda ids: [EndedRequest(7, "cancelled", code, error)])
    mine = Proxy(replicas, replicas, Measurements(), replicas, replicas)
    response: Any = asyncio.run(mine.forward(Forwarded(7, 1, "chat", 8000, 4, 1.0, 30.0, PATH, b"{}", "*/*", {})))
    problem = json.loads(response.content)["error"]
    assert (response.status_code, problem["code"], problem["message"]) == (status, code, f"model 'chat': {text}")
