"""A replica runs a user's program, which may answer anything. It harms no other request, no list and no reader (A68)."""

import asyncio
import itertools

import pytest

from gpusched.protocol.batches import Body, Frame, encode
from serving.models import InferenceRequest
from serving.replicas.connection import BatchFailed, ReplicaConnection, ReplicaHung, ReplicaLost
from serving.requests import results
from tests.api.calls import call
from tests.factories import make_token
from tests.serving.requests import ask, claim, make_endpoint

pytestmark = pytest.mark.django_db


class Replica:
    """A stream to a replica that answers with these bytes, whatever it is sent. `pause`: before each of them."""

    def __init__(self, *answers, pause=0.0):
        self.answers, self.pause = iter(answers), pause

    async def read(self):
        await asyncio.sleep(self.pause)
        return next(self.answers, b"")

    async def write(self, data):
        pass

    def close(self):
        pass


def run(replica, requests, timeout_seconds=5.0):
    connection = ReplicaConnection(replica, None)
    return asyncio.run(connection.run("embed", requests, timeout_seconds))


def results_frame(*bodies):
    return encode(Frame("results", {"batch": 1}, bodies))


@pytest.fixture
def requests(tenant, user):
    return claim(ask(make_endpoint(tenant, user), user, 2))


FINE = Body(b'{"x": 1}')


@pytest.mark.parametrize(
    "body",
    [
        Body(b'1, "state": "cancelled"'),
        Body(b"{"),
        Body(b""),
        Body(b"NaN"),
        Body(b'"\xff"'),
        Body(b'"\\ud800"'),
        Body(b"[" * 100_000 + b"]" * 100_000),
    ],
    ids=["injection", "cut off", "empty", "NaN", "not UTF-8", "half a character", "deep"],
)
def test_result_that_is_no_json_fails_alone_and_spoils_no_list(requests, user, body):
    results.record(run(Replica(results_frame(body, FINE)), requests))
    wrong, fine = InferenceRequest.objects.order_by("id")
    assert (wrong.state, wrong.error_code, fine.state) == ("failed", "wrong_result", "completed")
    token = make_token(user)
    items = call("GET", "/api/v1/tasks", token).json()["items"]
    assert [(item["state"], item["output"]) for item in items] == [("completed", {"x": 1}), ("failed", None)]


@pytest.mark.parametrize(
    "kind", ["text/html\r\nSet-Cookie: a=b", "text/\x00", "", "x", "text/html; charset=\ud800", "a/" + "b" * 200]
)
def test_media_type_that_is_none_becomes_bytes(requests, user, kind):
    results.record(run(Replica(results_frame(Body(b"x", kind), FINE)), requests))
    answer = call("GET", f"/api/v1/tasks/{requests[0].id}/result", make_token(user))
    assert (answer.status_code, answer.content, answer["Content-Type"]) == (200, b"x", "application/octet-stream")


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 100_000, "<script>"])
def test_error_of_any_text_is_recorded(requests, text):
    data = text.encode(errors="surrogatepass")
    results.record(run(Replica(results_frame(Body(data, "text/plain", text or "error"), FINE)), requests))
    row = InferenceRequest.objects.order_by("id")[0]
    assert (row.state, row.error_code, len(row.error) <= 2000) == ("failed", "error", True)


@pytest.mark.parametrize("value", ["a\x00b", "\ud800", None, 7, {"a": []}])
def test_failure_of_a_batch_may_have_any_code_and_text(requests, value):
    frame = encode(Frame("failed", {"batch": 1, "code": value, "message": value}))
    with pytest.raises(BatchFailed) as caught:
        run(Replica(frame), requests)
    assert caught.value.code == "error"
    assert "\x00" not in caught.value.message
    caught.value.message.encode()


def test_too_few_results_fail_the_batch(requests):
    with pytest.raises(BatchFailed) as caught:
        run(Replica(results_frame(FINE)), requests)
    assert (caught.value.code, caught.value.message) == ("wrong_number_of_results", "1 results for 2 requests")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x01", b""])
def test_anything_but_frames_ends_the_connection(requests, data):
    with pytest.raises(ReplicaLost):
        run(Replica(data), requests)


def test_frames_about_other_batches_do_not_extend_the_time(requests):
    others = itertools.repeat(encode(Frame("results", {"batch": 7})))
    with pytest.raises(ReplicaHung):
        run(Replica(*itertools.islice(others, 1000), pause=0.01), requests, timeout_seconds=0.2)


@pytest.mark.parametrize(
    ("answers", "text"), [([encode(Frame("results", {"batch": 1}))], "without a batch"), ([], "closed the connection")]
)
def test_idle_replica_that_sends_anything_or_ends_is_lost(answers, text):
    with pytest.raises(ReplicaLost, match=text):
        asyncio.run(ReplicaConnection(Replica(*answers), None).lost())
