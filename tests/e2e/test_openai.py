"""The OpenAI API over real processes: the unmodified client, two web processes, an agent, and a replica in a job."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from openai import OpenAI

from tests.serving import openai_replica
from tests.system.stack import Stack, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
BROKEN = (openai.APIError, httpx.HTTPError, OSError)
MAX_BATCH = 4


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(web_processes=2, heartbeat_seconds=0.5) as running:
        running.fleet(1)
        yield running


@pytest.fixture(scope="module")
def endpoint(stack: Stack) -> "Endpoint":
    endpoint = Endpoint(stack, "chat", max_batch=MAX_BATCH, min_replicas=1)
    wait_for(endpoint.is_warm, 60, "the replica to be warm")
    return endpoint


class Endpoint:
    """An endpoint, its replica, which listens on this machine, and a client."""

    def __init__(self, stack: Stack, name: str, *arguments: str, **fields: Any) -> None:
        self.stack, self.name, self.port = stack, name, free_port()
        self.headers = {"Authorization": f"Bearer {stack.token()}"}
        script = str(Path(openai_replica.__file__))
        template = {"command": [sys.executable, "-u", script, str(self.port), *arguments], "gpu_count": 1}
        body = {"name": name, "tenant": "default", "template": template, "protocol": "openai", "port": self.port}
        self.api("POST", "endpoints", {**body, **fields})
        self.client = OpenAI(base_url=f"{stack.url}/v1", api_key=stack.token(), max_retries=0, timeout=120)

    def api(self, method: str, path: str, body: Any = None) -> Any:
        answer = httpx.request(method, f"{self.stack.url}/api/v1/{path}", headers=self.headers, json=body, timeout=60)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def change(self, **fields: Any) -> None:
        self.api("PATCH", f"endpoints/{self.name}", fields)

    def is_warm(self) -> bool:
        return bool(self.api("GET", f"endpoints/{self.name}")["warm"]) and self.state() is not None

    def state(self) -> Any:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/state", timeout=30).json()
        except httpx.TransportError:
            return None

    def last_task(self) -> Any:
        return self.api("GET", f"tasks?endpoint={self.name}&limit=1")["items"][0]

    def ended_as(self, state: str, code: str) -> Callable[[], bool]:
        """Return a condition: the last request has ended like this."""

        def holds() -> bool:
            task = self.last_task()
            return (task["state"], task["error_code"]) == (state, code)

        return holds

    def chat(self, text: str) -> str:
        messages: Any = [{"role": "user", "content": text}]
        return str(self.client.chat.completions.create(model=self.name, messages=messages).choices[0].message.content)

    def stream(self, text: str) -> Any:
        messages: Any = [{"role": "user", "content": text}]
        return self.client.chat.completions.create(model=self.name, messages=messages, stream=True)

    def words(self, text: str) -> list[str]:
        return [event.choices[0].delta.content for event in self.stream(text)]


def test_openai_client_works_unmodified(endpoint: Endpoint) -> None:
    client = endpoint.client
    assert [model.id for model in client.models.list()] == ["chat"]
    assert client.models.retrieve("default/chat").owned_by == "default"
    assert endpoint.chat("count 3") == "word word word "
    assert endpoint.words("count 3") == ["word0 ", "word1 ", "word2 "]
    assert client.completions.create(model="chat", prompt="ab").choices[0].text == "abab"
    result = client.embeddings.create(model="chat", input=["a", "bcd"])
    assert [entry.embedding for entry in result.data] == [[1.0, 0.5], [3.0, 0.5]]
    wait_for(endpoint.ended_as("completed", ""), 20, "the outcome")


def test_errors_reach_the_client_as_its_exceptions(endpoint: Endpoint) -> None:
    stranger = OpenAI(base_url=f"{endpoint.stack.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError) as absent:
        endpoint.client.embeddings.create(model="absent", input="a")
    assert (absent.value.code, absent.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as long:
        endpoint.chat("long")
    assert (long.value.param, long.value.code) == ("messages", "long")
    wait_for(endpoint.ended_as("failed", "http_400"), 20, "the outcome")
    with pytest.raises(openai.InternalServerError, match="CUDA error"):
        endpoint.chat("fail")
    wait_for(endpoint.ended_as("failed", "http_500"), 20, "the outcome")


def test_stream_arrives_as_it_is_generated(endpoint: Endpoint) -> None:
    events = endpoint.stream("count 100 0.2")
    assert next(events).choices[0].delta.content == "word0 "
    assert endpoint.state()["active"] == 1
    events.close()
    wait_for(lambda: endpoint.state()["active"] == 0, 20, "the replica to stop")


def test_client_that_leaves_ends_the_work_of_the_replica(endpoint: Endpoint) -> None:
    before = endpoint.state()["closed_early"]
    with endpoint.stream("count 1000 0.05") as events:
        next(events)
    wait_for(lambda: endpoint.state()["active"] == 0, 20, "the replica to stop")
    assert endpoint.state()["closed_early"] == before + 1
    wait_for(endpoint.ended_as("cancelled", "client_left"), 20, "the outcome")


def test_client_that_leaves_before_the_response_ends_the_work_of_the_replica(endpoint: Endpoint) -> None:
    impatient = endpoint.client.with_options(timeout=1)
    with pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(model="chat", messages=[{"role": "user", "content": "hang"}])
    wait_for(lambda: endpoint.state()["active"] == 0, 20, "the replica to stop")
    wait_for(endpoint.ended_as("cancelled", "client_left"), 20, "the outcome")


def test_cancelled_task_ends_its_stream(endpoint: Endpoint) -> None:
    events = endpoint.stream("count 1000 0.05")
    next(events)
    endpoint.api("POST", f"tasks/{endpoint.last_task()['id']}/cancel")
    with pytest.raises(BROKEN):
        list(events)
    wait_for(lambda: endpoint.state()["active"] == 0, 20, "the replica to stop")
    assert endpoint.ended_as("cancelled", "cancelled")()


def test_requests_beyond_max_batch_wait_for_a_place(endpoint: Endpoint) -> None:
    results: list[Any] = []
    wait_for(lambda: endpoint.state()["active"] == 0, 20, "an idle replica")

    def ask() -> None:
        results.append(len(endpoint.words("count 10 0.05")))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [10] * 16
    assert endpoint.state()["most_at_once"] == MAX_BATCH


def test_slow_reader_stops_its_own_replica_and_fills_no_memory(endpoint: Endpoint) -> None:
    stack = endpoint.stack
    processes = [psutil.Process(pid) for pid in (*stack.pids("daphne"), stack.agents[0].pid)]
    before = [process.memory_info().rss for process in processes]
    events = endpoint.stream("count 1000000")
    next(events)
    sent, changed_at = -1, 0.0

    def is_stopped() -> bool:
        nonlocal sent, changed_at
        now, count = time.monotonic(), endpoint.state()["sent"]
        sent, changed_at = count, changed_at if count == sent else now
        return now - changed_at > 2

    wait_for(is_stopped, 60, "the replica to stop", pause=0.5)
    assert sent < 1_000_000
    growth = [process.memory_info().rss - old for process, old in zip(processes, before, strict=True)]
    assert max(growth) < 30 << 20, growth
    assert len(endpoint.words("count 3")) == 3
    events.close()
    wait_for(lambda: endpoint.state()["active"] == 0, 20, "the replica to stop")


def test_hanging_replica_ends_requests_after_their_timeout(endpoint: Endpoint) -> None:
    endpoint.change(timeout_seconds=2)
    try:
        with pytest.raises(openai.InternalServerError) as silent:
            endpoint.chat("hang")
        assert (silent.value.status_code, silent.value.code) == (504, "timeout")
        wait_for(endpoint.ended_as("failed", "timeout"), 20, "the outcome")
        endpoint.change(timeout_seconds=30)
        assert endpoint.chat("count 1") == "word "  # it has answered a probe again
        endpoint.change(timeout_seconds=2)
        with pytest.raises(openai.APIError) as stalled:
            endpoint.words("stall")
        assert stalled.value.code == "timeout"
        wait_for(endpoint.ended_as("failed", "timeout"), 20, "the outcome")
        wait_for(lambda: endpoint.state()["active"] == 0, 20, "the replica to stop")
    finally:
        endpoint.change(timeout_seconds=30)


def test_rubbish_of_a_replica_is_an_error_after_other_tries(endpoint: Endpoint) -> None:
    before = endpoint.state()["requests"]
    with pytest.raises(openai.InternalServerError) as caught:
        endpoint.chat("rubbish")
    assert (caught.value.status_code, caught.value.code) == (502, "replica_lost")
    assert endpoint.state()["requests"] == before + 3
    wait_for(endpoint.ended_as("failed", "replica_lost"), 20, "the outcome")
    assert endpoint.chat("count 1") == "word "


def test_stream_that_is_cut_in_an_event_is_no_complete_response(endpoint: Endpoint) -> None:
    """Also not for a client that reads no events: the connection ends without the end of the body."""
    with pytest.raises(BROKEN):
        endpoint.words("cut")
    body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "cut"}]}
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{endpoint.stack.url}/v1/chat/completions", headers=endpoint.headers, json=body, timeout=60)
    wait_for(endpoint.ended_as("failed", "replica_lost"), 20, "the outcome")


def test_replica_that_dies_ends_its_stream_with_an_error_and_is_replaced(endpoint: Endpoint) -> None:
    assert len(endpoint.words("count 2")) == 2
    pid = endpoint.state()["pid"]
    with pytest.raises(openai.APIError) as caught:
        endpoint.words("die")
    assert caught.value.code == "replica_lost"
    wait_for(endpoint.ended_as("failed", "replica_lost"), 20, "the outcome")
    assert endpoint.chat("count 1") == "word "
    assert endpoint.state()["pid"] != pid


def test_first_request_starts_a_replica_and_idle_time_ends_it(stack: Stack) -> None:
    """The replica runs for a second before it listens: the request waits, and the cold start is measured."""
    endpoint = Endpoint(stack, "cold", "1", idle_seconds=1, timeout_seconds=60)
    for _ in range(2):
        assert endpoint.state() is None
        assert endpoint.chat("count 2") == "word word "
        wait_for(lambda: endpoint.api("GET", "endpoints/cold")["replicas"] == 0, 60, "the replica to end")
        wait_for(lambda: endpoint.state() is None, 30, "the program to end")
    task = endpoint.last_task()
    assert task["started_at"] > task["queued_at"]


def test_waiting_request_ends_when_its_endpoint_is_removed(stack: Stack) -> None:
    endpoint = Endpoint(stack, "gone", "600", timeout_seconds=300)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            endpoint.chat("count 1")
        except openai.APIError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_for(lambda: endpoint.api("GET", "endpoints/gone")["queued"] == 1, 30, "the request to wait")
    endpoint.api("DELETE", "endpoints/gone?with_queue=true")
    thread.join(30)
    assert [type(error) for error in errors] == [openai.NotFoundError]


def test_requests_of_a_killed_web_process_leave_their_places(endpoint: Endpoint) -> None:
    streams = [endpoint.stream("count 10000 0.1") for _ in range(MAX_BATCH)]
    for events in streams:
        next(events)
    endpoint.stack.kill("daphne")
    for events in streams:
        with pytest.raises(BROKEN):
            list(events)
    wait_for(endpoint.stack.is_ready, 60, "the web processes to be back")
    assert endpoint.chat("count 1") == "word "

    def codes() -> list[str]:
        tasks = endpoint.api("GET", f"tasks?endpoint=chat&limit={MAX_BATCH + 1}")["items"]
        return [task["error_code"] for task in tasks[1:]]

    wait_for(lambda: codes() == ["client_left"] * MAX_BATCH, 20, "the outcomes")
