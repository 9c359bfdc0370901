"""No event is skipped or read twice, whichever transaction commits first, with two real connections."""

import threading
from contextlib import contextmanager

import psycopg
import pytest
from django.db import connection, transaction

from jobs.events import log
from jobs.events.log import Frontier, Reader, read
from jobs.submit import queue_limits
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, submit

pytestmark = pytest.mark.django_db(transaction=True)
EVENTS = "/api/v1/events"


@pytest.fixture(autouse=True)
def _own_frontier(monkeypatch):
    monkeypatch.setattr(log, "frontier", Frontier())


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def member(nlp):
    return make_member(nlp)


@contextmanager
def written_but_not_committed(member, tenant):
    """Yield the id of an uncommitted job in a list. Commit it at the end."""
    has_written, may_commit = threading.Event(), threading.Event()
    late: list[int] = []

    def slowly() -> None:
        try:
            queue_limits.warning(tenant.pk, member.pk)  # counts, which a request does outside any transaction
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


def test_late_commit_is_read_before_events_with_later_ids(nlp, member):
    """The first transaction gets its ids first and commits last: a reader that continues from the second would miss it."""
    reader = Reader(None)
    start = read(reader, 0)["next_since"]
    with written_but_not_committed(member, nlp) as late:
        early = submit(member, nlp)
        first_page = read(reader, start)
    second_page = read(reader, first_page["next_since"])
    assert (first_page["items"], first_page["next_since"]) == ([], start)
    assert [e["job_id"] for e in second_page["items"]] == [*late, early]


def test_default_since_is_the_newest_id_when_the_first_poll_meets_a_writer(nlp, member, monkeypatch):
    """The first poll of a new web process settles nothing while a submit is open."""
    old = submit(member, nlp)
    newest = read(Reader(None), 0)["next_since"]
    token, cold = make_token(member), Frontier()
    monkeypatch.setattr(log, "frontier", cold)
    with written_but_not_committed(member, nlp) as late:
        start = call("GET", EVENTS, token).json()
        assert cold.settled == 0
    assert (start["items"], start["next_since"], start["more"]) == ([], newest, False)
    job_ids = [e["job_id"] for e in call("GET", f"{EVENTS}?since={start['next_since']}", token).json()["items"]]
    assert job_ids == late
    assert old not in job_ids


def test_default_since_is_the_newest_id_when_nobody_has_read_for_long_and_a_poll_meets_a_writer(nlp, member):
    """This process settled its latest id before all that has happened since."""
    read(Reader(None), 0)
    old = submit(member, nlp)
    with written_but_not_committed(member, nlp) as late:
        start = call("GET", EVENTS, make_token(member)).json()
    later = [e["job_id"] for e in read(Reader(None), start["next_since"])["items"]]
    assert (start["items"], later) == ([], late)
    assert old not in later


def test_committed_event_is_readable_at_once(nlp, member):
    start = read(Reader(None), 0)["next_since"]
    first = submit(member, nlp)
    assert [e["job_id"] for e in read(Reader(None), start)["items"]] == [first]


@pytest.mark.parametrize("database", ["postgres", None])
def test_transaction_that_writes_no_events_delays_nothing(nlp, member, database):
    """In this or another database, however long: a backup, a migration, an open psql."""
    start = read(Reader(None), 0)["next_since"]
    params = connection.get_connection_params()
    with psycopg.connect(**{**params, "dbname": database or params["dbname"]}) as elsewhere:
        elsewhere.execute("CREATE TEMP TABLE unrelated AS SELECT pg_current_xact_id()")
        first = submit(member, nlp)
        assert [e["job_id"] for e in read(Reader(None), start)["items"]] == [first]
