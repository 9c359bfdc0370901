"""Retries of the SDK: which requests it repeats, with which key, and which it never repeats."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gpusched.client import AsyncClient, Client, Conflict, GpuschedError, Invalid, RateLimited, ServerError, Unreachable
from gpusched.client.calls import access, billing, cluster, jobs, records
from gpusched.client.sync import connection
from gpusched.client.transport import polling, retries
from gpusched.client.transport.call import Call
from tests.client.fakeserver import Answer, FakeServer, acted, job, problem, sequence

BUSY = problem(503, "starting", "the server starts")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_SECONDS", 0.001)


@pytest.mark.parametrize("failure", [Answer(0), Answer(502), BUSY, problem(429, "slow_down", "too many")])
def test_submit_is_retried_with_the_same_key(server: FakeServer, failure: Answer) -> None:
    """A03: whether or not the first one arrived, one job comes of it."""
    server.on("POST", "/jobs", sequence(failure, failure, acted()))
    with Client(server.url) as client:
        assert client.submit(["true"]).id == 42
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_two_submits_have_two_keys(server: FakeServer) -> None:
    server.on("POST", "/jobs", acted())
    with Client(server.url) as client:
        client.submit(["true"])
        client.submit(["true"])
        client.submit(["true"], idempotency_key="mine")
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_async_client_retries_in_the_same_way(server: FakeServer) -> None:
    server.on("POST", "/jobs", sequence(Answer(0), BUSY, acted()))

    async def scenario() -> int:
        async with AsyncClient(server.url) as client:
            return (await client.submit(["true"])).id

    assert asyncio.run(scenario()) == 42
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1


POSTS = [
    jobs.retry(42),
    jobs.requeue(42),
    jobs.hold(42),
    jobs.extend(42, add_minutes=5),
    access.create_token("laptop"),
    access.create_service_token("nlp", "ci"),
    access.join_token(),
    cluster.create_tenant("nlp"),
    cluster.drain("n1"),
    billing.set_rate("*", 2),
    records.exempt(tenant="nlp"),
]


@pytest.mark.parametrize("call", POSTS, ids=lambda call: call.path)
def test_every_post_is_retried_with_the_same_key_when_its_answer_is_lost(server: FakeServer, call: Call[Any]) -> None:
    """A03: the server answers the second as it did the first."""
    server.routes["POST", call.path] = sequence(Answer(0), Answer(502), problem(400, "x", "arrived"))
    with Client(server.url) as client, pytest.raises(Invalid, match="arrived"):
        client.send(call)
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 3
    assert len({*keys}) == 1


OUTAGE_OF_DATABASE = problem(503, "database_unavailable", "it may or may not have been executed", "use the same key")


@pytest.mark.parametrize(
    "failures",
    [
        [Answer(504, b"<html>")],
        [Answer(0)],
        [Answer(502), BUSY],
        [Answer(502), problem(429, "slow_down", "too many")],
        [OUTAGE_OF_DATABASE],
        [Answer(201, b'{"job_id": 4')],
    ],
)
def test_error_of_a_submit_that_may_have_been_accepted_names_its_key(
    server: FakeServer, failures: list[Answer]
) -> None:
    """A second submit has another key: the work would run twice."""
    server.on("POST", "/jobs", sequence(*failures))
    with Client(server.url, patience_seconds=0.1) as client, pytest.raises(GpuschedError) as caught:
        client.submit(["true"])
    assert "may" in str(caught.value)
    key = server.requests[0].headers["idempotency-key"]
    assert caught.value.next_step == f"check the result before you repeat it; its idempotency key was {key}"


@pytest.mark.parametrize("failure", [BUSY, problem(429, "slow_down", "too many")])
def test_error_of_a_submit_that_was_refused_leaves_no_doubt(server: FakeServer, failure: Answer) -> None:
    server.on("POST", "/jobs", failure)
    with Client(server.url, patience_seconds=0.1) as client, pytest.raises(GpuschedError) as caught:
        client.submit(["true"])
    assert "carried out" not in f"{caught.value}{caught.value.next_step}"


@pytest.mark.parametrize("call", [jobs.job(42), jobs.submit_many([], dry_run=True)], ids=["read", "dry run"])
def test_error_of_a_call_that_changes_nothing_leaves_no_doubt(server: FakeServer, call: Call[Any]) -> None:
    server.default = Answer(504)
    with Client(server.url, patience_seconds=0.1) as client, pytest.raises(Unreachable) as caught:
        client.send(call)
    assert "carried out" not in f"{caught.value}{caught.value.next_step}"
    assert "check that the server runs" in caught.value.next_step


def test_unrepeatable_request_is_sent_once(server: FakeServer) -> None:
    """An idempotency key belongs to a caller, who is unknown before a login."""
    server.on("POST", "/login", Answer(0))
    with Client(server.url) as client, pytest.raises(Unreachable, match="may have carried out"):
        client.send(access.login("ada", "pw", "laptop"))
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
def test_unrepeatable_request_is_sent_once_when_a_proxy_gives_up(server: FakeServer, status: int) -> None:
    server.on("POST", "/login", problem(status, "x", "no answer"))
    with Client(server.url) as client, pytest.raises(Unreachable, match="no answer") as caught:
        client.send(access.login("ada", "pw", "laptop"))
    assert len(server.requests) == 1
    assert ("may have carried out" in str(caught.value)) == (status != 503)  # the server's own, or a proxy without one


def test_request_that_never_arrived_is_retried_even_if_unrepeatable(server: FakeServer) -> None:
    url = server.url
    server.close()
    reasons: list[str] = []
    with Client(url, patience_seconds=0.5, on_retry=reasons.append) as client, pytest.raises(Unreachable) as caught:
        client.send(access.login("ada", "pw", "laptop"))
    assert "Connection refused" in reasons[0]
    assert url in str(caught.value)


@pytest.mark.parametrize("status", [400, 404, 409, 500, 501])
def test_definite_answer_is_not_retried(server: FakeServer, status: int) -> None:
    server.on("GET", "/jobs/42", problem(status, "x", "no"))
    with Client(server.url) as client, pytest.raises(Exception, match="no"):
        client.get(42)
    assert len(server.requests) == 1


def test_retries_end_after_the_timeout(server: FakeServer) -> None:
    server.default = BUSY
    with Client(server.url, patience_seconds=0.4) as client, pytest.raises(Unreachable, match="the server starts"):
        client.get(42)
    assert len(server.requests) > 1


def test_retry_after_0_is_no_reason_to_retry_without_a_pause(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_FIRST_PAUSE_SECONDS", 0.05)
    server.default = Answer(503, {"detail": "away"}, {"Retry-After": "0"})
    with Client(server.url, patience_seconds=0.1) as client, pytest.raises(Unreachable):
        client.status()
    assert len(server.requests) < 10


OUTAGE = httpx.Response(503, headers={"Retry-After": "1"}, json={"detail": "the database does not answer"})


def waited_out(call: Call[Any], answer: httpx.Response, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return for how long a call is repeated that is always answered like this."""
    now, keys = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def handle(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("Idempotency-Key"))
        return answer

    monkeypatch.setattr(connection, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: now))
    with Client("http://x", patience_seconds=6.0, transport=httpx.MockTransport(handle)) as client:
        with pytest.raises(Unreachable):
            client.send(call)
    assert len(set(keys)) == 1
    return now


def test_retries_last_longer_in_an_outage_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """A59: a restart of PostgreSQL after a crash takes longer than patience with a wrong URL."""
    monkeypatch.undo()  # the pauses as they are
    assert waited_out(jobs.retry(42), OUTAGE, monkeypatch) == 30.0
    assert waited_out(jobs.retry(42), httpx.Response(503), monkeypatch) <= 6.0
    assert waited_out(access.login("ada", "pw", "laptop"), OUTAGE, monkeypatch) == 0.0


def test_retries_of_a_wait_end_with_its_timeout_in_an_outage_of_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lasted five times as long: `gpusched wait --timeout 60` five minutes."""
    assert 3.0 < waited_out(polling.within(jobs.job(42), 4.0), OUTAGE, monkeypatch) <= 6.0


def test_retry_after_beyond_the_timeout_is_not_awaited(server: FakeServer) -> None:
    server.default = Answer(429, {"detail": "queue full"}, {"Retry-After": "600"})
    with Client(server.url) as client, pytest.raises(RateLimited, match="queue full"):
        client.get(42)
    assert len(server.requests) == 1


def test_redirect_is_named_and_not_followed(server: FakeServer) -> None:
    server.on("POST", "/jobs", Answer(301, "", {"Location": "https://elsewhere.example/"}))
    with Client(server.url, "u1.secret") as client, pytest.raises(ServerError, match="elsewhere") as caught:
        client.submit(["true"])
    assert len(server.requests) == 1
    assert "a login page" in caught.value.next_step  # its URL would not be one of a server


def test_redirect_to_https_names_the_address_to_use(server: FakeServer) -> None:
    """As a TLS proxy redirects plain HTTP: with the path and query of the request."""
    server.default = Answer(308, "", {"Location": "https://head.example/api/v1/jobs/42?a=1"})
    with Client(server.url, "u1.secret") as client, pytest.raises(ServerError) as caught:
        client.get(42)
    assert str(caught.value) == "the server redirects to https://head.example"
    assert caught.value.next_step == "use that URL"


def test_answer_of_another_server_is_an_error(server: FakeServer) -> None:
    server.default = Answer(200, b"<html>Welcome to the hotel network</html>", {"Content-Type": "text/html"})
    with Client(server.url) as client, pytest.raises(ServerError, match="not a gpusched server's"):
        client.get(42)


def test_quota_edit_sends_the_version_read(server: FakeServer) -> None:
    server.on("GET", "/tenants/nlp/quota", Answer(200, {"max_gpus": 8, "version": 3}))
    server.on("PUT", "/tenants/nlp/quota", problem(412, "version_conflict", "changed meanwhile"))
    with Client(server.url) as client, pytest.raises(Conflict):
        client.set_quota("nlp", client.quota("nlp"))
    put = server.requests[-1]
    assert put.headers["if-match"] == '"3"'
    assert "version" not in put.json
    assert put.json["max_gpus"] == 8


def test_names_are_quoted_in_paths(server: FakeServer) -> None:
    with Client(server.url) as client, pytest.raises(Exception, match="no such thing"):
        client.node("..?x=%2e#y z")
    with Client(server.url) as client, pytest.raises(Exception, match="no such thing"):
        client.disable_user("../jobs/1")
    paths = [request.path for request in server.requests]
    assert paths == ["/api/v1/nodes/..%3Fx%3D%252e%23y%20z", "/api/v1/users/..%2Fjobs%2F1/disable"]


def test_pages_are_read_to_the_limit(server: FakeServer) -> None:
    pages = sequence(
        Answer(200, {"items": [job(1), job(2)], "next_cursor": "c1"}),
        Answer(200, {"items": [job(3)], "next_cursor": "c2"}),
    )
    server.on("GET", "/jobs", pages)
    with Client(server.url) as client:
        assert [j.id for j in client.list(state=["pending", "held"], limit=3)] == [1, 2, 3]
    assert [dict(request.query) for request in server.requests] == [
        {"state": "pending,held", "limit": "3"},
        {"state": "pending,held", "limit": "1", "cursor": "c1"},
    ]
