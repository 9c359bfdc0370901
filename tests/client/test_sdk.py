"""The SDK as users write it: submit, why, wait, act, follow; blocking and async."""

import asyncio
import copy
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import httpx
import pytest

from gpusched.client import (
    AsyncClient,
    Client,
    GpuschedError,
    Invalid,
    Job,
    NeverFits,
    NotFound,
    Timeout,
    Unreachable,
    errors,
)
from gpusched.client.aio import connection
from gpusched.client.calls.jobs import JobOptions
from gpusched.client.errors import ServerError, from_answer
from gpusched.client.transport import polling, wire
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.rest.explain import Simulation
from gpusched.protocol.rest.jobs import Log
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer, GrowingLog, Request, acted, job, log, problem, sequence

EXPLANATION = {"job_id": 42, "state": "pending", "code": "capacity", "sentence": "waits for 4 GPUs", "next_step": "wait",
       "evidence": {"free": 0}, "since": "2030-01-01T10:00:00Z", "position": {"jobs": 3, "gpus": 8}}  # fmt: skip


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "QUICK_SECONDS", 0.001)


def test_documented_example_works(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSCHED_URL", server.url)
    monkeypatch.setenv("GPUSCHED_TOKEN", "u1.secret")
    server.on("POST", "/jobs", acted())
    server.on("GET", "/jobs/42/explain", Answer(200, EXPLANATION))
    ended = Answer(200, job(state="completed", exit_code=0))
    server.on("GET", "/jobs/42", sequence(Answer(200, job()), Answer(200, job(state="running")), ended))
    with Client() as c:
        submitted = c.submit(["python", "train.py"], gpus=4, tenant="nlp")
        assert submitted.why().sentence == "waits for 4 GPUs"
        result = submitted.wait(timeout=3600)
    assert (result.state, result.exit_code, result.reason) == ("completed", 0, None)
    assert server.requests[0].json == {"tenant": "nlp", "gpu_count": 4, "command": ["python", "train.py"]}
    assert server.requests[0].headers["authorization"] == "Bearer u1.secret"


def test_simulation_returns_the_forecast_of_a_job(server: FakeServer) -> None:
    """Sync and async alike; nothing but the question is sent."""
    placed = {"starts_now": True, "sentence": "it would start now on n1", "placement": [{"rank": 0, "node": "n1"}]}
    server.on("POST", "/jobs/simulate", Answer(200, placed))

    async def ask() -> Simulation:
        async with AsyncClient(server.url) as c:
            return await c.simulate(["true"], gpus=2)

    with Client(server.url) as c:
        simulation = c.simulate(["true"], gpus=2)
    assert simulation == asyncio.run(ask())
    assert (simulation.starts_now, simulation.placement[0].node) == (True, "n1")
    assert {(request.method, request.path.rpartition("/")[2]) for request in server.requests} == {("POST", "simulate")}


def test_async_client_behaves_like_the_blocking_one(server: FakeServer) -> None:
    server.on("POST", "/jobs", acted())
    server.on("GET", "/jobs/42/explain", Answer(200, EXPLANATION))
    server.on("GET", "/jobs/42", sequence(Answer(200, job()), Answer(200, job(state="failed", attempt=1, exit_code=3))))
    server.on("GET", "/jobs/42/logs", log(b"boom", complete=True))

    async def scenario() -> None:
        async with AsyncClient(server.url) as c:
            submitted = await c.submit(["false"], gpus=1)
            explained = await submitted.why()
            assert explained.position is not None
            assert explained.position.gpus == 8
            assert (await submitted.wait(timeout=5)).exit_code == 3
            output = b"".join([item.data async for item in submitted.follow() if isinstance(item, Log)])
            assert output == b"boom"

    asyncio.run(scenario())


def test_async_client_works_in_one_event_loop_after_another(server: FakeServer) -> None:
    """A connection belongs to the loop that opened it."""
    server.on("GET", "/jobs/42", Answer(200, job()))
    client = AsyncClient(server.url)

    async def read() -> list[int]:
        return [(await client.get(42)).id, (await client.get(42)).id]

    assert [asyncio.run(read()) for _ in range(3)] == [[42, 42]] * 3
    assert len({request.client_port for request in server.requests}) == 3
    asyncio.run(client.close())


def test_async_client_works_after_many_cancelled_calls(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """httpcore does not free a connection whose request is cancelled in certain steps of the event loop."""
    server.on("GET", "/jobs/42", Answer(200, job()))
    monkeypatch.setattr(connection, "_MAX_INTERRUPTED", 1)
    options, limits = wire._options, {"limits": httpx.Limits(max_connections=1)}
    monkeypatch.setattr(wire, "_options", lambda config: {**options(config), **limits})

    async def scenario() -> None:
        async with AsyncClient(server.url) as client:
            for steps in range(40):
                call = asyncio.create_task(client.get(42))
                for _ in range(steps):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait([call])
                await asyncio.wait_for(client.get(42), 5)

    asyncio.run(scenario())


def test_wait_raises_in_time_when_the_server_does_not_answer(server: FakeServer) -> None:
    """It took 30 s, the usual time for an answer."""
    is_over = threading.Event()

    def late(_: Request) -> Answer:
        is_over.wait(20)
        return Answer(200, job())

    server.on("GET", "/jobs/42", late)
    began_at = time.monotonic()
    with Client(server.url) as c, pytest.raises(Unreachable, match="in time"):
        c.wait(42, timeout=0.05)
    assert time.monotonic() - began_at < 10
    is_over.set()


WAITS: dict[str, Callable[[Client, float | None], object]] = {
    "job": lambda c, timeout: c.wait(42, timeout),
    "element": lambda c, timeout: c.wait_element(42, 1, timeout),
    "task": lambda c, timeout: c.wait_task(17, timeout),
    "map": lambda c, timeout: list(c.map("embed", [1], timeout=timeout)),
}


@pytest.mark.parametrize(
    ("status", "step"), [(407, "HTTP_PROXY"), (413, "client_max_body_size"), (504, "the proxy"), (404, "the URL")]
)
def test_next_step_after_the_page_of_a_proxy_fits_its_status(status: int, step: str) -> None:
    assert step in from_answer(status, b"<html>Request Entity Too Large</html>", "POST /api/v1/jobs").next_step


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.parametrize(("timeout", "seconds"), [(4.0, 6.0), (None, 30.0), (3600.0, 30.0)])
def test_no_request_of_a_wait_outlasts_its_timeout(name: str, timeout: float | None, seconds: float) -> None:
    """Nor is a long poll cut short."""
    limits: list[float] = []

    def handle(request: httpx.Request) -> httpx.Response:
        limits.append(request.extensions["timeout"]["read"])
        return httpx.Response(404, json={"detail": "there is no such thing"})

    with Client("http://x", transport=httpx.MockTransport(handle)) as c, pytest.raises(NotFound):
        WAITS[name](c, timeout)
    assert limits == [pytest.approx(seconds, abs=2.0)]


def test_wait_raises_in_time_and_the_job_continues(server: FakeServer) -> None:
    server.on("GET", "/jobs/42", Answer(200, job(state="running")))
    with Client(server.url) as c, pytest.raises(Timeout, match=r"still running") as caught:
        c.wait(42, timeout=0.05)
    assert caught.value.exit_code == 7
    assert isinstance(caught.value, TimeoutError)


def test_forked_process_uses_connections_of_its_own(server: FakeServer) -> None:
    """Two processes on one connection would read each other's answers."""
    server.on("GET", "/jobs/42", Answer(200, job()))
    with Client(server.url) as client:
        client.get(42)
        if not (child := os.fork()):
            with suppress(BaseException):
                client.get(42)
            os._exit(0)
        os.waitpid(child, 0)
        client.get(42)
    ports = [request.client_port for request in server.requests]
    assert ports[0] == ports[2] != ports[1]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copy_of_a_job_has_its_data_and_tells_that_it_has_no_client(
    server: FakeServer, copied: Callable[[Job], Job]
) -> None:
    """Not with a KeyError. A process of multiprocessing gets a job as a deep copy."""
    server.on("GET", "/jobs/42", Answer(200, job(state="running")))
    with Client(server.url) as client:
        there = copied(client.get(42))
    assert (there.id, there.state, there.message) == (42, "running", "")
    with pytest.raises(Invalid, match="has no client"):
        there.refresh()


def test_configured_tenant_is_the_default(server: FakeServer) -> None:
    server.on("POST", "/jobs", acted())
    with Client(server.url, tenant="vision") as c:
        c.submit(["true"])
        c.submit(["true"], tenant="nlp")
    assert [request.json["tenant"] for request in server.requests] == ["vision", "nlp"]


def test_command_string_is_refused_before_a_request(server: FakeServer) -> None:
    with Client(server.url) as c, pytest.raises(Invalid, match="must be a list"):
        c.submit("python train.py")
    assert server.requests == []


def test_job_that_never_fits_has_its_own_exception(server: FakeServer) -> None:
    server.on("POST", "/jobs", problem(403, "quota_exceeded", "quota exceeded for tenant nlp", request_id="r1"))
    with Client(server.url) as c, pytest.raises(NeverFits) as caught:
        c.submit(["true"], gpus=100)
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (403, "quota_exceeded", "r1")


def test_actions_return_the_job_and_the_servers_message(server: FakeServer) -> None:
    server.on("GET", "/jobs/42", Answer(200, job()))
    for verb in ("cancel", "hold", "release", "requeue"):
        server.on("POST", f"/jobs/42/{verb}", acted(verb, state="held"))
    with Client(server.url) as c:
        handle = c.get(42)
        for action in (handle.cancel, handle.hold, handle.release, handle.queue_again):
            assert action().state == "held"
        assert handle.hold().message == "job 42 hold"


def test_submit_takes_every_field_of_a_job_request() -> None:
    positional = {"command", "gpu_count"}
    assert set(JobOptions.__annotations__) == set(JobRequest.__struct_fields__) - positional


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b'{"detail": 5}', b"\xff", b"<html>"])
def test_every_error_body_becomes_a_sentence(body: bytes) -> None:
    error = from_answer(500, body, "GET /x")
    assert isinstance(error, GpuschedError)
    assert "GET /x" in str(error)


@pytest.mark.parametrize(
    ("status", "kind", "exit_code"),
    [
        *((status, errors.Invalid, 2) for status in (400, 405, 413, 415, 422)),
        (404, errors.NotFound, 3),
        *((status, errors.NotPermitted, 4) for status in (401, 403)),
        *((status, errors.Conflict, 5) for status in (409, 412)),
        *((status, errors.Unreachable, 8) for status in (502, 503, 504)),
        (429, errors.RateLimited, 9),
        (500, errors.ServerError, 1),
    ],
)
def test_unknown_status_has_an_exception(status: int, kind: type, exit_code: int) -> None:
    """As a proxy in front of the server answers."""
    error = from_answer(status, b"<html>", "GET /x")
    assert (type(error), error.exit_code) == (kind, exit_code)


def test_job_has_a_repr_and_a_notebook_view(server: FakeServer) -> None:
    server.on("GET", "/jobs/42", Answer(200, job(name="<script>", state="running", nodes=["n1"])))
    with Client(server.url) as c:
        handle = c.get(42)
    assert repr(handle) == "<job 42 <script> is running on n1>"
    assert repr([handle]) == "[<job 42 <script> is running on n1>]"
    assert "<td>42 &lt;script&gt;</td>" in handle._repr_html_()
    assert "<script>" not in handle._repr_html_()


# Following


@pytest.mark.parametrize("call", ["get", "follow", "delete_secret"])
def test_page_of_a_proxy_is_refused_as_an_answer(server: FakeServer, call: str) -> None:
    """With status 200 the page counted as a job's output, or as the confirmation of a deleted secret."""
    page = Answer(200, b"<html><title>Log in</title></html>", {"Content-Type": "text/html"})
    server.on("GET", "/jobs/42", page if call == "get" else Answer(200, job(state="running")))
    server.on("GET", "/jobs/42/logs", page)
    server.on("DELETE", "/tenants/nlp/secrets/wandb", page)
    calls: dict[str, Callable[[Client], object]] = {
        "get": lambda c: c.get(42),
        "follow": lambda c: list(c.follow(42)),
        "delete_secret": lambda c: c.delete_secret("wandb", tenant="nlp"),
    }
    with Client(server.url) as c, pytest.raises(ServerError, match="is not a gpusched server's"):
        calls[call](c)


def output_of(server: FakeServer, **options: int) -> bytes:
    with Client(server.url) as c:
        return b"".join(item.data for item in c.follow(42, **options) if isinstance(item, Log))


def test_following_reads_a_growing_log_to_its_end(server: FakeServer) -> None:
    text = "fünf\n".encode()
    server.on("GET", "/jobs/42/logs", GrowingLog(b"one\n", b"", text[:2], text[2:]))
    server.on("GET", "/jobs/42", sequence(Answer(200, job()), Answer(200, job(state="completed", attempt=1))))
    assert output_of(server) == b"one\n" + text


def test_following_continues_after_a_restart_of_the_server(server: FakeServer) -> None:
    down = problem(503, "starting", "starts")
    pieces = sequence(log(b"before ", 0), Answer(0), down, log(b"after", 7, complete=True))
    server.on("GET", "/jobs/42/logs", pieces)
    server.on("GET", "/jobs/42", sequence(Answer(200, job(state="running")), Answer(200, job(state="completed"))))
    assert output_of(server) == b"before after"


@pytest.mark.parametrize("cut", [b"", b"one\ntw"])
def test_log_whose_answer_was_cut_is_read_to_its_end(server: FakeServer, cut: bytes) -> None:
    """An answer without a length, as old proxies send it, ends where the connection breaks."""
    whole = b"one\ntwo\n"
    broken, rest = replace(log(whole, complete=True), body=cut), log(whole[len(cut) :], len(cut), complete=True)
    server.on("GET", "/jobs/42", Answer(200, job(state="completed", attempt=1)))
    server.on("GET", "/jobs/42/logs", sequence(broken, rest))
    assert output_of(server) == whole
    server.on("GET", "/jobs/42/logs", sequence(broken, rest))
    assert call(server.url, "logs", "42").stdout == whole.decode()


def test_following_continues_with_the_next_attempt(server: FakeServer) -> None:
    logs = {"1": GrowingLog(b"first\n", attempt=1), "2": GrowingLog(b"second\n", attempt=2)}
    server.on("GET", "/jobs/42/logs", lambda request: logs[request.query["attempt"]](request))
    states = [("running", 1), ("pending", 1), ("pending", 1), ("running", 2), ("completed", 2)]
    server.on("GET", "/jobs/42", sequence(*(Answer(200, job(state=s, attempt=n)) for s, n in states)))
    assert output_of(server) == b"first\nsecond\n"


def test_following_one_attempt_ends_with_it(server: FakeServer) -> None:
    server.on("GET", "/jobs/42/logs", GrowingLog(b"first\n", attempt=1))
    server.on("GET", "/jobs/42", Answer(200, job(state="running", attempt=2)))
    assert output_of(server, attempt=1) == b"first\n"


def test_following_an_unstarted_job_ends_at_once(server: FakeServer) -> None:
    server.on("GET", "/jobs/42", Answer(200, job(state="cancelled", attempt=0)))
    assert output_of(server) == b""


def test_following_ends_without_the_bytes_of_a_lost_node(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "LATE_BYTES_SECONDS", 0.01)
    monkeypatch.setattr(polling, "READ_JOB_SECONDS", 0.01)
    server.on("GET", "/jobs/42/logs", lambda request: log(b"", int(request.query["offset"]), 0))
    server.on("GET", "/jobs/42", Answer(200, job(state="failed", attempt=1)))
    assert output_of(server) == b""


def test_following_reads_output_that_arrives_long_after_the_end(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent sends a log of 1 GB for a minute: `gpusched run` printed the part of its first ten seconds."""
    monkeypatch.setattr(polling, "LATE_BYTES_SECONDS", 0.0)
    monkeypatch.setattr(polling, "READ_JOB_SECONDS", 0.0)
    server.on("GET", "/jobs/42/logs", sequence(log(b"a"), log(b"b", 1), log(b"c", 2, complete=True)))
    server.on("GET", "/jobs/42", Answer(200, job(state="completed", attempt=1)))
    assert output_of(server) == b"abc"
