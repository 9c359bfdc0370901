"""Tasks by SDK and command line: waiting for many, and mapping inputs to results over refusals and outages."""

import asyncio
import json
from typing import Any

import pytest

from gpusched.client import AsyncClient, Client, Invalid, RateLimited, Timeout
from gpusched.client.calls import serving
from gpusched.client.errors import TaskFailed
from gpusched.client.transport import polling, retries
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, Request, problem

FULL = problem(429, "queue_full", "the queue is full")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_SECONDS", 0.001)


class Tasks:
    """An endpoint whose output is twice its input. Each read of ended tasks returns the newest `per_read` of them.
    `failures`: answers instead of the next ones, by method."""

    def __init__(self, server: FakeServer, max_queue: int = 10_000, per_read: int = 500) -> None:
        self.max_queue, self.per_read = max_queue, per_read
        self.inputs: list[Any] = []
        self.unread: set[int] = set()
        self.keys: dict[str, Answer] = {}
        self.failed: set[int] = set()
        self.failures: dict[str, list[Answer]] = {"POST": [], "GET": []}
        self.lost: list[bool] = []
        self.sizes: list[int] = []
        server.on("POST", "/tasks", self.submit)
        server.on("GET", "/tasks", self.read)

    def submit(self, request: Request) -> Answer:
        key, inputs = request.headers["idempotency-key"], request.json["inputs"]
        if self.failures["POST"]:
            return self.failures["POST"].pop()
        if key in self.keys:
            return self.keys[key]
        self.sizes.append(len(inputs))
        if len(self.unread) + len(inputs) > self.max_queue:
            return FULL
        first = len(self.inputs)
        self.inputs += inputs
        self.unread |= set(range(first, len(self.inputs)))
        items = [self.task(number, "queued") for number in range(first, len(self.inputs))]
        self.keys[key] = Answer(201, {"items": items, "queued": 1})
        return Answer(0) if self.lost and self.lost.pop() else self.keys[key]

    def read(self, request: Request) -> Answer:
        if self.failures["GET"]:
            return self.failures["GET"].pop()
        ids = [int(text) for text in request.query["ids"].split(",")]
        assert len(ids) <= serving.MAX_IDS
        ended = sorted(ids)[-self.per_read :]
        self.unread -= set(ended)
        items = [self.task(number, "failed" if number in self.failed else "completed") for number in ended]
        return Answer(200, {"items": items, "next_cursor": None})

    def task(self, number: int, state: str) -> dict[str, Any]:
        output = 2 * self.inputs[number] if state == "completed" else None
        return {"id": number, "endpoint": "twice", "tenant": "nlp", "user": "ada", "state": state, "cost": 1.0,
                "output": output, "output_type": "" if output is None else "application/json",
                "output_bytes": None if output is None else len(str(output)),
                "error": "no" if state == "failed" else ""}  # fmt: skip


def mapped(server: FakeServer, count: int, **options: Any) -> list[Any]:
    with Client(server.url) as client:
        return list(client.map("twice", range(count), **options))


def test_map_returns_results_in_order_whatever_ends_first(server: FakeServer) -> None:
    """A66"""
    tasks = Tasks(server, per_read=100)
    assert mapped(server, 1300) == [2 * number for number in range(1300)]
    assert tasks.sizes == [1000, 300]


def test_async_map_behaves_like_the_blocking_one(server: FakeServer) -> None:
    Tasks(server, per_read=7)

    async def scenario() -> list[Any]:
        async with AsyncClient(server.url) as client:
            return [result async for result in client.map("twice", range(20))]

    assert asyncio.run(scenario()) == list(range(0, 40, 2))


def test_map_of_nothing_sends_nothing(server: FakeServer) -> None:
    assert mapped(server, 0) == []
    assert server.requests == []


def test_map_yields_the_first_results_before_it_reads_all_inputs(server: FakeServer) -> None:
    Tasks(server)
    with Client(server.url) as client:
        endless = iter(range(1_000_000))
        results = client.map("twice", endless)
        assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert next(endless) < 10_000


def test_map_survives_outages_and_doubles_no_task(server: FakeServer) -> None:
    tasks = Tasks(server)
    busy = problem(503, "database_away", "the database is away")
    tasks.failures = {"POST": [Answer(0), busy], "GET": [busy, Answer(0), Answer(502)]}
    tasks.lost = [True]
    assert mapped(server, 10) == list(range(0, 20, 2))
    assert tasks.inputs == list(range(10))


def test_map_sends_what_fits_while_the_queue_is_full(server: FakeServer) -> None:
    tasks = Tasks(server, max_queue=100, per_read=30)
    assert mapped(server, 1000) == list(range(0, 2000, 2))
    assert tasks.inputs == list(range(1000))


@pytest.mark.parametrize("refusal", [problem(400, "exceeds_burst", "too much at once"), problem(413, "x", "too large")])
def test_map_sends_less_at_once_when_a_submit_is_too_large(server: FakeServer, refusal: Answer) -> None:
    tasks = Tasks(server)
    submit = tasks.submit

    def at_most_ten(request: Request) -> Answer:
        return submit(request) if len(request.json["inputs"]) <= 10 else refusal

    server.on("POST", "/tasks", at_most_ten)
    assert mapped(server, 50) == list(range(0, 100, 2))
    assert max(tasks.sizes) <= 10


def test_map_raises_a_lasting_refusal(server: FakeServer) -> None:
    server.on("POST", "/tasks", problem(400, "invalid", "no"))
    with pytest.raises(Invalid):
        mapped(server, 5)


def test_map_gives_up_on_a_full_queue_at_its_timeout(server: FakeServer) -> None:
    server.on("POST", "/tasks", FULL)
    with pytest.raises(RateLimited):
        mapped(server, 5, timeout=0.05)


def test_map_raises_the_failure_of_a_task_after_the_results_before_it(server: FakeServer) -> None:
    Tasks(server).failed = {2}
    with Client(server.url) as client:
        results = client.map("twice", range(5))
        assert [next(results), next(results)] == [0, 2]
        with pytest.raises(TaskFailed, match="task 2 failed: no"):
            next(results)


def test_wait_raises_timeout_when_no_task_has_ended(server: FakeServer) -> None:
    server.on("GET", "/tasks", Answer(200, {"items": [], "next_cursor": None}))
    with Client(server.url) as client, pytest.raises(Timeout, match="task 7 has not ended"):
        client.wait_task(7, timeout=0)


def test_wait_asks_for_less_than_the_timeout_of_a_request(server: FakeServer) -> None:
    Tasks(server).inputs = [0]
    with Client(server.url) as client:
        client.wait_task(0)
    assert int(server.requests[0].query["wait"]) <= polling.LONG_POLL_SECONDS < 30


def test_command_waits_for_many_tasks_and_prints_each(server: FakeServer) -> None:
    Tasks(server).inputs = [5, 6]
    result = call(server.url, "task", "wait", "0", "1", "-o", "jsonl")
    assert result.exit_code == 0, result
    assert {task["id"]: task["output"] for task in map(json.loads, result.stdout.splitlines())} == {0: 10, 1: 12}


def test_command_fails_after_all_results_when_a_task_failed(server: FakeServer) -> None:
    tasks = Tasks(server, per_read=1)
    tasks.inputs, tasks.failed = [5, 6], {1}
    result = call(server.url, "task", "wait", "0", "1")
    assert (result.exit_code, result.stdout.splitlines()) == (1, ["task 1 is failed", "10"])


def test_wait_pauses_while_the_server_answers_at_once(server: FakeServer) -> None:
    """It does so while too many clients wait."""
    server.on("GET", "/tasks", Answer(200, {"items": [], "next_cursor": None}))
    with Client(server.url) as client, pytest.raises(Timeout):
        list(client.wait_tasks([1], timeout=1.0))
    assert 1 < len(server.requests) < 20


def test_submit_names_its_task_before_it_waits(server: FakeServer) -> None:
    """No command lists tasks, so the id would be lost with the wait: the token is revoked, or the server stays away."""
    refused = problem(401, "not_authenticated", "this token is unknown, expired or revoked")
    Tasks(server).failures["GET"] = [refused]
    result = call(server.url, "task", "submit", "--wait", "twice", "3")
    assert result.exit_code == 4
    assert result.stderr.splitlines()[0] == "task 0 submitted; Ctrl-C ends the wait, not the task"
