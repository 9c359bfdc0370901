"""No event is skipped, none is told twice, whichever transaction ends first: two real connections."""

import threading
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection, transaction

from jobs.api import events
from jobs.events import log
from jobs.events.log import Frontier, Reader, read
from jobs.submit import queue_limits
from tests.api.test_access import call
from tests.factories import make_member, make_tenant, make_token, submit

pytestmark = pytest.mark.django_db(transaction=True)
EVENTS = "/api/v1/events"


@pytest.fixture(autouse=True)
def _own_frontier(monkeypatch):
    own = Frontier()
    for module in (log, events):
        monkeypatch.setattr(module, "frontier", own)


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def member(nlp):
    return make_member(nlp)


@contextmanager
def written_but_not_committed(member, tenant):
    """Gives the id of a job as a list; it is committed when this ends."""
    has_written, may_commit = threading.Event(), threading.Event()
    late: list[int] = []

    def slowly() -> None:
        try:
            queue_limits.warning(tenant.pk, member.pk)  # counts; a request does so outside of any transaction
            with transaction.atomic():
                late.append(submit(member, tenant))
                has_written.set()
                may_commit.wait(30)
        finally:
            connection.close()

    thread = threading.Thread(target=slowly)
    thread.start()
    assert has_written.wait(30)
    try:
        yield late
    finally:
        may_commit.set()
        thread.join()


def test_what_commits_late_is_told_before_what_was_given_a_later_id(nlp, member):
    """Two connections: the first takes its ids first and commits last. Who read on from the second would miss it."""
    reader = Reader(None)
    start = read(reader, 0)["next_since"]
    with written_but_not_committed(member, nlp) as late:
        early = submit(member, nlp)
        before = read(reader, start)
    after = read(reader, before["next_since"])
    assert (before["items"], before["next_since"]) == ([], start)
    assert [e["job_id"] for e in after["items"]] == [*late, early]


def test_from_now_on_is_not_from_the_beginning_though_the_first_look_meets_a_writer(nlp, member, monkeypatch):
    """A web process that has just started, while somebody submits: its first look settles nothing."""
    old = submit(member, nlp)
    newest = read(Reader(None), 0)["next_since"]
    token, cold = make_token(member), Frontier()
    for module in (log, events):
        monkeypatch.setattr(module, "frontier", cold)
    with written_but_not_committed(member, nlp) as late:
        start = call("GET", EVENTS, token).json()
        assert cold.settled == 0
    assert (start["items"], start["next_since"], start["more"]) == ([], newest, False)
    told = [e["job_id"] for e in call("GET", f"{EVENTS}?since={start['next_since']}", token).json()["items"]]
    assert told == late
    assert old not in told


def test_a_transaction_that_began_later_holds_nothing_up(nlp, member):
    start = read(Reader(None), 0)["next_since"]
    first = submit(member, nlp)
    assert [e["job_id"] for e in read(Reader(None), start)["items"]] == [first]


@pytest.mark.parametrize("database", ["postgres", None])
def test_a_transaction_that_writes_other_things_holds_nothing_up(nlp, member, database):
    """In another database or in this one, however long: a backup, a migration, somebody at a prompt."""
    start = read(Reader(None), 0)["next_since"]
    own = connection.get_connection_params()
    with psycopg.connect(**{**own, "dbname": database or own["dbname"]}) as elsewhere:
        elsewhere.execute("CREATE TEMP TABLE unrelated AS SELECT pg_current_xact_id()")
        first = submit(member, nlp)
        assert [e["job_id"] for e in read(Reader(None), start)["items"]] == [first]
