"""The events of all jobs: their order, their visibility, streams and polls. For concurrent commits see tests/races."""

import asyncio
import gc
import json
import re
from collections import Counter
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connections
from django.test import Client

from gpusched.asgi import OneHopHandler
from gpusched.lib.bus.listener import Listener
from jobs.actions import job_actions
from jobs.api import events
from jobs.events import log
from jobs.events import stream as event_stream
from jobs.events.log import Frontier, Reader, read
from jobs.events.stream import EventStreams
from tenants.auth import tokens
from tenants.tenancy.rename import rename
from tests.api.calls import call
from tests.docs.reading import text_of
from tests.factories import identity_for, make_member, make_tenant, make_token, make_user, submit

EVENTS = "/api/v1/events"
db = sync_to_async


@pytest.fixture(autouse=True)
def _own_frontier(monkeypatch):
    frontier = Frontier()
    for module in (log, event_stream):
        monkeypatch.setattr(module, "frontier", frontier)


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def member(nlp):
    return make_member(nlp)


# --- one answer -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_events_follow_in_order_from_since(nlp, member):
    token = make_token(member)
    start = call("GET", EVENTS, token).json()
    assert start["items"] == []
    job = submit(member, nlp, name="train")
    job_actions.cancel(job, identity_for(member))
    page = call("GET", f"{EVENTS}?since={start['next_since']}&limit=1", token).json()
    assert [(e["kind"], e["job_id"], e["tenant"], e["name"]) for e in page["items"]] == [
        ("submitted", job, "nlp", "train")]  # fmt: skip
    assert page["more"] is True
    next_page = call("GET", f"{EVENTS}?since={page['next_since']}", token).json()
    assert [e["kind"] for e in next_page["items"]] == ["cancelled"]
    assert next_page["more"] is False
    assert call("GET", f"{EVENTS}?since={next_page['next_since']}", token).json()["items"] == []


@pytest.mark.django_db
def test_events_are_limited_to_visible_tenants_and_filters(nlp, member):
    """A08"""
    other = make_tenant("other")
    foreign = submit(make_member(other), other)
    own_job = submit(member, nlp)
    job_actions.cancel(own_job, identity_for(member))

    def visible_events(token, **filters):
        params = urlencode({"since": 0, **filters})
        return [(e["job_id"], e["kind"]) for e in call("GET", f"{EVENTS}?{params}", token).json()["items"]]

    token, admin = make_token(member), make_token(make_user(admin=True))
    assert visible_events(token) == [(own_job, "submitted"), (own_job, "cancelled")]
    assert visible_events(token, tenant="nlp", kind="submitted") == [(own_job, "submitted")]
    assert visible_events(token, kind="cancelled,ended") == [(own_job, "cancelled")]
    assert visible_events(admin) == [(foreign, "submitted"), (own_job, "submitted"), (own_job, "cancelled")]
    assert visible_events(admin, tenant="other") == [(foreign, "submitted")]


@pytest.mark.django_db
def test_answer_examines_a_bounded_number_of_events(nlp, member, monkeypatch):
    other = make_tenant("other")
    stranger = make_member(other)
    own_job = submit(member, nlp)
    for _ in range(5):
        submit(stranger, other)
    reader, since, items, pages = Reader((other.pk,)), read(Reader(None), 0)["items"][0]["id"] - 1, [], 0
    monkeypatch.setattr(log, "MAX_LOOKED_AT", 2)
    while True:
        page = read(reader, since)
        items += page["items"]
        since, pages = page["next_since"], pages + 1
        if not page["more"]:
            break
    assert len(items) == 5
    assert own_job not in [e["job_id"] for e in items]
    assert pages == 3


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["since=-1", "since=x", "wait=31", "limit=0", "nonsense=1", "kind=ended,endd"])
def test_invalid_query_names_the_field(member, query):
    """A55: for streams as well."""
    answer = call("GET", f"{EVENTS}?{query}", make_token(member))
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, query.partition("=")[0])


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_future_since_is_refused_with_the_latest_id(nlp, member, accept):
    """A55: as after a restore of the database. The reader would get no events until the ids reach `since`."""
    submit(member, nlp)
    token = make_token(member)
    newest = call("GET", f"{EVENTS}?since=0", token).json()["next_since"]
    headers = {"Authorization": f"Bearer {token}", "Accept": accept}
    answer = Client().get(f"{EVENTS}?since={newest + 1}", headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "since")
    assert answer.json()["next_step"].startswith(f"continue with since={newest},")
    assert call("GET", f"{EVENTS}?since={newest}", token).json()["items"] == []


def test_all_kinds_are_documented():
    [kinds] = set(re.findall(r"Kinds: `([^`]*)`", text_of("docs/openapi.json")))
    assert kinds.replace("\\n", " ").split() == list(log.KINDS)


@pytest.mark.django_db
def test_invisible_tenant_is_a_404_at_once(member):
    """A08: whether it exists or not."""
    make_tenant("other")
    for name in ("other", "nowhere"):
        answer = call("GET", f"{EVENTS}?wait=30&tenant={name}", make_token(member))
        assert (answer.status_code, answer.json()["detail"].replace(name, "X")) == (
            404,
            "there is no tenant 'X', or you may not see it",
        )


# --- as they come -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _hub(monkeypatch):
    listener = Listener()
    streams = EventStreams(listener)
    monkeypatch.setattr(events, "hub", streams)
    try:
        yield streams
    finally:
        await streams.stop()
        if listener._task is not None:
            listener._task.cancel()
            await asyncio.gather(listener._task, return_exceptions=True)
        HANDLER._threads.submit(connections.close_all).result()
        await db(connections.close_all)()


@pytest.fixture
async def hub(monkeypatch):
    async with _hub(monkeypatch) as streams:
        yield streams


class StreamedRequest:
    """A request through the server's real handler, with one thread for all requests."""

    def __init__(self, token: str, query: str = "", accept: str = "application/json", **headers: str) -> None:
        all_headers = {"host": "localhost", "authorization": f"Bearer {token}", "accept": accept, **headers}
        scope = {
            "type": "http", "method": "GET", "path": EVENTS, "query_string": query.encode(), "http_version": "1.1",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in all_headers.items()],
        }  # fmt: skip
        self.link = ApplicationCommunicator(HANDLER, scope)
        self.body = b""

    async def begin(self) -> "StreamedRequest":
        await self.link.send_input({"type": "http.request", "body": b""})
        self.start = await self.link.receive_output(10)
        return self

    async def until(self, text: bytes) -> bytes:
        while text not in self.body:
            message = await self.link.receive_output(10)
            self.body += message.get("body", b"")
            assert message.get("more_body") or text in self.body, self.body
        return self.body

    async def leave(self) -> None:
        await self.link.send_input({"type": "http.disconnect"})
        await self.ended()

    async def ended(self) -> None:
        assert (await asyncio.wait([self.link.future], timeout=10))[0], "it does not end"
        await self.link.wait(1)


HANDLER = OneHopHandler()
HANDLER._threads.maximum = 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(event_stream, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(event_stream, "PAUSE_SECONDS", 0.01)
    from nodes.agents.hub import hub as agents

    monkeypatch.setattr(agents, "start", lambda: None)


@pytest.mark.django_db(transaction=True)
async def test_poll_answers_when_an_event_arrives_and_holds_no_thread(hub, nlp, member):
    token = await db(make_token)(member)
    polls = [await StreamedRequest(token, "wait=30").begin() for _ in range(3)]
    job = await db(submit)(member, nlp)
    for poll in polls:
        answer = json.loads(await poll.until(b'"more":false}'))
        assert [e["job_id"] for e in answer["items"]] == [job]
        await poll.ended()
    assert not hub.limiter.now


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("loss", ["membership", "token"])
async def test_poll_answers_without_what_its_reader_has_lost_meanwhile(hub, nlp, member, loss):
    """A08"""
    colleague = await db(make_member)(nlp)
    poll = await StreamedRequest(await db(make_token)(member), "wait=5").begin()
    if loss == "token":
        await db(lambda: tokens.revoke_token(member.api_tokens.get()))()
    else:
        await db(lambda: nlp.memberships.filter(user=member).delete())()
    await db(submit)(colleague, nlp)
    assert json.loads(await poll.until(b"}"))["items"] == []


@pytest.mark.django_db(transaction=True)
async def test_poll_without_events_ends_in_time(hub, nlp, member):
    token = await db(make_token)(member)
    answer = json.loads(await (await StreamedRequest(token, "since=0&wait=1").begin()).until(b'"more":false}'))
    assert answer["items"] == []


@pytest.mark.django_db(transaction=True)
async def test_stream_sends_events_and_continues_after_a_reconnect(hub, nlp, member, monkeypatch):
    """The server also ends a stream after its lifetime, so that the client authenticates again."""
    token = await db(make_token)(member)
    stream = await StreamedRequest(token, accept="text/event-stream").begin()
    headers = dict(stream.start["headers"])
    assert (stream.start["status"], headers[b"Content-Type"]) == (200, b"text/event-stream")
    await stream.until(b"retry: 1000")
    first = await db(submit)(member, nlp)
    received = await stream.until(b'"job_id":%d' % first)
    assert b"event: submitted\n" in received
    await stream.leave()
    assert not hub.limiter.now
    missed = await db(submit)(member, nlp)
    last = received.rpartition(b"\nid: ")[2].partition(b"\n")[0].decode()
    for name, seconds in (("MAX_STREAM_SECONDS", 2.0), ("KEEPALIVE_SECONDS", 0.05)):
        monkeypatch.setattr(event_stream, name, seconds)
    second = await StreamedRequest(token, "since=0", accept="text/event-stream", last_event_id=last).begin()
    body = await second.until(b'"job_id":%d' % missed)
    assert b'"job_id":%d,' % first not in body
    await second.ended()


@pytest.mark.django_db(transaction=True)
async def test_stream_hides_other_tenants_and_ends_with_its_token(hub, nlp, member, monkeypatch):
    """A08"""
    monkeypatch.setattr(event_stream, "KEEPALIVE_SECONDS", 0.05)
    token = await db(make_token)(member)
    stream = await StreamedRequest(token, accept="text/event-stream").begin()
    other = await db(make_tenant)("other")
    foreign = await db(submit)(await db(make_member)(other), other)
    own_job = await db(submit)(member, nlp)
    body = await stream.until(b'"job_id":%d' % own_job)
    assert b'"job_id":%d,' % foreign not in body
    await db(lambda: tokens.revoke_token(member.api_tokens.get()))()
    while (await stream.link.receive_output(10)).get("more_body"):
        pass
    await stream.ended()
    assert not hub.limiter.now


@pytest.mark.django_db(transaction=True)
async def test_stream_of_a_tenant_continues_when_it_is_renamed(hub, nlp, member, monkeypatch):
    """The ids go on, so what the stream leaves out would be lost for its reader."""
    monkeypatch.setattr(event_stream, "KEEPALIVE_SECONDS", 0.05)
    stream = await StreamedRequest(await db(make_token)(member), "tenant=nlp", accept="text/event-stream").begin()
    await stream.until(b"retry: 1000")
    await db(rename)(nlp, "lab", actor="test")
    await db(nlp.refresh_from_db)()
    job = await db(submit)(member, nlp)
    body = await stream.until(b'"job_id":%d' % job)
    assert b'"tenant":"lab"' in body
    await stream.leave()


def change_password(user):
    user.set_password("another one")
    user.save()


ENDS_OF_A_LOGIN = {
    "deactivated": lambda user, page: User.objects.filter(pk=user.pk).update(is_active=False),
    "new password": lambda user, page: change_password(user),
    "logout": lambda user, page: page.logout(),
    "expired": lambda user, page: Session.objects.update(expire_date="2020-01-01T00:00:00Z"),
}


@pytest.mark.django_db
@pytest.mark.parametrize("end", ENDS_OF_A_LOGIN.values(), ids=ENDS_OF_A_LOGIN)
def test_stream_of_a_page_ends_with_its_login(member, end):
    page = Client()
    page.force_login(member)
    reauthorize = events._reauthorization(page.get(EVENTS).wsgi_request, "", Reader(None))
    assert reauthorize() is not None
    end(member, page)
    assert reauthorize() is None


@pytest.mark.django_db
@pytest.mark.parametrize("caller", ["others", "ada"])
def test_streams_are_limited_in_total_and_per_user(nlp, monkeypatch, caller):
    member, limiter = make_member(nlp, name="ada"), event_stream.hub.limiter
    monkeypatch.setattr(limiter, "now", Counter({caller: limiter.max_each if caller == "ada" else limiter.maximum}))
    answer = call("GET", f"{EVENTS}?wait=1", make_token(member))
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (429, "too_many_streams", "5")
    assert call("GET", EVENTS, make_token(member)).status_code == 200


@pytest.mark.django_db
def test_stream_counts_from_the_request_until_its_response_is_closed(nlp, monkeypatch):
    """Concurrent requests are not all admitted before the first stream begins."""
    token, limiter = make_token(make_member(nlp)), event_stream.hub.limiter
    monkeypatch.setattr(limiter, "max_each", 2)
    answers = [call("GET", f"{EVENTS}?wait=1", token) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    answers[0].close()
    answers[0].close()
    assert limiter.now.total() == 1
    del answers
    gc.collect()
    assert not limiter.now
