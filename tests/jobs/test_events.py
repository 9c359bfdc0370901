"""The events of all jobs: in their order, only what one may see, as they come; for what commits when see tests/races."""

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
from django.db import connections
from django.test import Client

from gpusched.asgi import OneHopHandler
from gpusched.lib.bus.listener import Listener
from jobs.actions import job_actions
from jobs.api import events
from jobs.events import log
from jobs.events import stream as event_hub
from jobs.events.log import Frontier, Reader, read
from jobs.events.stream import EventStreams
from tenants.auth import tokens
from tests.api.test_access import call
from tests.docs.reading import text_of
from tests.factories import identity_for, make_member, make_tenant, make_token, make_user, submit

EVENTS = "/api/v1/events"
db = sync_to_async


@pytest.fixture(autouse=True)
def _own_frontier(monkeypatch):
    own = Frontier()
    for module in (log, event_hub, events):
        monkeypatch.setattr(module, "frontier", own)


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def member(nlp):
    return make_member(nlp)


# --- one answer -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_events_are_told_in_order_from_where_one_was(nlp, member):
    token = make_token(member)
    start = call("GET", EVENTS, token).json()
    assert start["items"] == []
    job = submit(member, nlp, name="train")
    job_actions.cancel(job, identity_for(member))
    page = call("GET", f"{EVENTS}?since={start['next_since']}&limit=1", token).json()
    assert [(e["kind"], e["job_id"], e["tenant"], e["name"]) for e in page["items"]] == [
        ("submitted", job, "nlp", "train")]  # fmt: skip
    assert page["more"] is True
    rest = call("GET", f"{EVENTS}?since={page['next_since']}", token).json()
    assert [e["kind"] for e in rest["items"]] == ["cancelled"]
    assert rest["more"] is False
    assert call("GET", f"{EVENTS}?since={rest['next_since']}", token).json()["items"] == []


@pytest.mark.django_db
def test_only_what_one_may_see_is_told_and_filters_narrow_it(nlp, member):
    """A08"""
    other = make_tenant("other")
    foreign = submit(make_member(other), other)
    own = submit(member, nlp)
    job_actions.cancel(own, identity_for(member))

    def seen(token, **filters):
        query = urlencode({"since": 0, **filters})
        return [(e["job_id"], e["kind"]) for e in call("GET", f"{EVENTS}?{query}", token).json()["items"]]

    token, admin = make_token(member), make_token(make_user(admin=True))
    assert seen(token) == [(own, "submitted"), (own, "cancelled")]
    assert seen(token, tenant="nlp", kind="submitted") == [(own, "submitted")]
    assert seen(token, kind="cancelled,ended") == [(own, "cancelled")]
    assert seen(admin) == [(foreign, "submitted"), (own, "submitted"), (own, "cancelled")]
    assert seen(admin, tenant="other") == [(foreign, "submitted")]


@pytest.mark.django_db
def test_an_answer_looks_at_a_bounded_part_and_goes_on(nlp, member, monkeypatch):
    other = make_tenant("other")
    stranger = make_member(other)
    own = submit(member, nlp)
    for _ in range(5):
        submit(stranger, other)
    reader, since, found, pages = Reader((other.pk,)), read(Reader(None), 0)["items"][0]["id"] - 1, [], 0
    monkeypatch.setattr(log, "MAX_LOOKED_AT", 2)
    while True:
        page = read(reader, since)
        found += page["items"]
        since, pages = page["next_since"], pages + 1
        if not page["more"]:
            break
    assert len(found) == 5
    assert own not in [e["job_id"] for e in found]
    assert pages == 3


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["since=-1", "since=x", "wait=31", "limit=0", "nonsense=1", "kind=ended,endd"])
def test_a_wrong_question_is_refused_by_name(member, query):
    """A55: also where a stream was asked for."""
    answer = call("GET", f"{EVENTS}?{query}", make_token(member))
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, query.partition("=")[0])


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
def test_who_is_ahead_of_all_events_is_told_where_to_go_on(nlp, member, accept):
    """A55: as after a restore of the database. Until the ids had come so far, nothing would be told."""
    submit(member, nlp)
    token = make_token(member)
    newest = call("GET", f"{EVENTS}?since=0", token).json()["next_since"]
    headers = {"Authorization": f"Bearer {token}", "Accept": accept}
    answer = Client().get(f"{EVENTS}?since={newest + 1}", headers=headers)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "since")
    assert answer.json()["next_step"].startswith(f"continue with since={newest},")
    assert call("GET", f"{EVENTS}?since={newest}", token).json()["items"] == []


def test_the_kinds_are_documented():
    [words] = re.findall(r"Kinds: `([^`]*)`", text_of("docs/reference/rest.md"))
    assert words.split() == list(log.KINDS)


@pytest.mark.django_db
def test_a_tenant_that_is_not_seen_is_not_waited_for(member):
    """A08: nor is it told whether it exists."""
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
    doorbell = Listener()
    made = EventStreams(doorbell)
    monkeypatch.setattr(events, "hub", made)
    try:
        yield made
    finally:
        await made.stop()
        if doorbell._task is not None:
            doorbell._task.cancel()
            await asyncio.gather(doorbell._task, return_exceptions=True)
        HANDLER._threads.submit(connections.close_all).result()
        await db(connections.close_all)()


@pytest.fixture
async def hub(monkeypatch):
    async with _hub(monkeypatch) as made:
        yield made


class Asked:
    """A request through the handler that the server really has, with one thread for all requests."""

    def __init__(self, token: str, query: str = "", accept: str = "application/json", **headers: str) -> None:
        told = {"host": "localhost", "authorization": f"Bearer {token}", "accept": accept, **headers}
        scope = {
            "type": "http", "method": "GET", "path": EVENTS, "query_string": query.encode(), "http_version": "1.1",
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in told.items()],
        }  # fmt: skip
        self.link = ApplicationCommunicator(HANDLER, scope)
        self.body = b""

    async def begin(self) -> "Asked":
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
        assert (await asyncio.wait([self.link.future], timeout=10))[0], "it goes on"
        await self.link.wait(1)


HANDLER = OneHopHandler()
HANDLER._threads.most = 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(event_hub, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(event_hub, "PAUSE_SECONDS", 0.01)
    from nodes.agents.hub import hub as agents

    monkeypatch.setattr(agents, "start", lambda: None)


@pytest.mark.django_db(transaction=True)
async def test_a_poll_answers_when_something_happens_and_holds_no_thread(hub, nlp, member):
    token = await db(make_token)(member)
    polls = [await Asked(token, "wait=30").begin() for _ in range(3)]
    job = await db(submit)(member, nlp)
    for poll in polls:
        answer = json.loads(await poll.until(b'"more":false}'))
        assert [e["job_id"] for e in answer["items"]] == [job]
        await poll.ended()
    assert not hub.limiter.now


@pytest.mark.django_db(transaction=True)
async def test_a_poll_ends_in_time_with_where_to_go_on(hub, nlp, member):
    token = await db(make_token)(member)
    answer = json.loads(await (await Asked(token, "since=0&wait=1").begin()).until(b'"more":false}'))
    assert answer["items"] == []


@pytest.mark.django_db(transaction=True)
async def test_a_stream_tells_events_and_goes_on_after_a_break(hub, nlp, member, monkeypatch):
    """It has a life of its own length, too: whoever listens asks again, and says who it is."""
    token = await db(make_token)(member)
    stream = await Asked(token, accept="text/event-stream").begin()
    headers = dict(stream.start["headers"])
    assert (stream.start["status"], headers[b"Content-Type"]) == (200, b"text/event-stream")
    await stream.until(b"retry: 1000")
    first = await db(submit)(member, nlp)
    told = await stream.until(b'"job_id":%d' % first)
    assert b"event: submitted\n" in told
    await stream.leave()
    assert not hub.limiter.now
    missed = await db(submit)(member, nlp)
    last = told.rpartition(b"\nid: ")[2].partition(b"\n")[0].decode()
    for name, seconds in (("MAX_STREAM_SECONDS", 2.0), ("KEEPALIVE_SECONDS", 0.05)):
        monkeypatch.setattr(event_hub, name, seconds)
    again = await Asked(token, "since=0", accept="text/event-stream", last_event_id=last).begin()
    body = await again.until(b'"job_id":%d' % missed)
    assert b'"job_id":%d,' % first not in body
    await again.ended()


@pytest.mark.django_db(transaction=True)
async def test_a_stream_tells_nothing_of_others_and_ends_with_its_token(hub, nlp, member, monkeypatch):
    """A08"""
    monkeypatch.setattr(event_hub, "KEEPALIVE_SECONDS", 0.05)
    token = await db(make_token)(member)
    stream = await Asked(token, accept="text/event-stream").begin()
    other = await db(make_tenant)("other")
    foreign = await db(submit)(await db(make_member)(other), other)
    own = await db(submit)(member, nlp)
    body = await stream.until(b'"job_id":%d' % own)
    assert b'"job_id":%d,' % foreign not in body
    await db(lambda: tokens.revoke_token(member.api_tokens.get()))()
    while (await stream.link.receive_output(10)).get("more_body"):
        pass
    await stream.ended()
    assert not hub.limiter.now


@pytest.mark.django_db
@pytest.mark.parametrize("who", ["others", "ada"])
def test_there_are_only_so_many_streams_and_fewer_of_each(nlp, monkeypatch, who):
    member, room = make_member(nlp, name="ada"), event_hub.hub.limiter
    monkeypatch.setattr(room, "now", Counter({who: room.most_each if who == "ada" else room.most}))
    answer = call("GET", f"{EVENTS}?wait=1", make_token(member))
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (429, "too_many_streams", "5")
    assert call("GET", EVENTS, make_token(member)).status_code == 200


@pytest.mark.django_db
def test_a_place_is_taken_at_once_and_left_with_what_was_never_sent(nlp, monkeypatch):
    """Many that come in the same moment are not all let in before the first of them begins."""
    token, room = make_token(make_member(nlp)), event_hub.hub.limiter
    monkeypatch.setattr(room, "most_each", 2)
    answers = [call("GET", f"{EVENTS}?wait=1", token) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    answers[0].close()
    answers[0].close()
    assert room.now.total() == 1
    del answers
    gc.collect()
    assert not room.now
