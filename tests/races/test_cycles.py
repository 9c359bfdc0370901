"""One worker leads, and the transactions of a leader that lost its session change nothing."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, close_old_connections, connection, connections, transaction
from psycopg.errors import DeadlockDetected

from gpusched.lib.db.engine.base import DatabaseWrapper
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.arrays import ArrayRequest
from jobs.lifecycle import pending_reasons
from jobs.models import Job
from scheduling.cycle import run
from scheduling.engine import planner
from scheduling.models import Term
from scheduling.worker import chores, leadership, tasks
from scheduling.worker.leadership import LeadershipLost
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
TIMEOUT_SECONDS = 20


class Worker:
    """A thread with its own connection and its own memory of its term."""

    def __init__(self) -> None:
        self._work: Callable[[], Any] | None = None
        self._result: Any = None
        self._wake, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._wake.release()

    def result(self) -> Any:
        assert self._done.acquire(timeout=TIMEOUT_SECONDS)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def do(self, work: Callable[[], Any]) -> Any:
        self.begin(work)
        return self.result()

    def end(self) -> None:
        self.begin(connections.close_all)
        self.result()
        self._work = None
        self._wake.release()
        self._thread.join(TIMEOUT_SECONDS)

    def _run(self) -> None:
        while self._wake.acquire() and self._work is not None:
            try:
                self._result = self._work()
            except Exception as error:  # noqa: BLE001 - raised by `result`
                self._result = error
            self._done.release()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Worker, Worker]]:
    memory = threading.local()

    class Memory:
        def last(self, key: None, default: Any) -> Any:
            return getattr(memory, "value", default)

        def put(self, key: None, value: Any) -> None:
            memory.value = value

    monkeypatch.setattr(leadership, "_term", Memory())
    pair = Worker(), Worker()
    yield pair
    for worker in pair:
        worker.end()


def elect() -> int | None:
    return leadership.wait_for_term(0)


def session() -> int:
    return int(query("SELECT pg_backend_pid() AS pid")[0]["pid"])


def terminate(pid: int) -> None:
    execute("SELECT pg_terminate_backend(%s)", [pid])
    wait_for(lambda: not query("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]), 10, "the end of the session")


def test_one_worker_leads_and_another_does_when_its_session_ends(workers: tuple[Worker, Worker]) -> None:
    """A51, A81: a term for each leader."""
    first, second = workers
    assert first.do(elect) == 1
    assert second.do(elect) is None
    assert first.do(elect) == 1
    terminate(first.do(session))
    assert second.do(lambda: leadership.wait_for_term(TIMEOUT_SECONDS)) == 2
    assert second.do(elect) == 2


def test_standby_leads_at_once_when_it_waits(workers: tuple[Worker, Worker]) -> None:
    first, second = workers
    assert first.do(elect) == 1
    pid = first.do(session)
    second.begin(lambda: leadership.wait_for_term(TIMEOUT_SECONDS))
    began = time.monotonic()
    terminate(pid)
    assert second.result() == 2
    assert time.monotonic() - began < 2


def test_leader_that_lost_its_session_while_it_planned_places_no_job(
    workers: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A81: its connection is replaced, so only the term stops its commit."""
    first, second = workers
    tenant = make_tenant()
    make_node(gpus=1)
    job = submit(make_member(tenant), tenant, gpu_count=1)
    planned, may_commit = threading.Event(), threading.Event()
    plan = planner.plan

    def slow_plan(*args: Any) -> Any:
        decided = plan(*args)
        planned.set()
        assert may_commit.wait(TIMEOUT_SECONDS)
        connection.close()  # as a proxy of connections would reconnect
        return decided

    monkeypatch.setattr(run, "plan", slow_plan)
    pid = first.do(session)
    first.begin(lambda: tasks.cycle("test"))
    assert planned.wait(TIMEOUT_SECONDS)
    terminate(pid)
    assert second.do(lambda: leadership.wait_for_term(TIMEOUT_SECONDS)) == 2
    may_commit.set()
    with pytest.raises(LeadershipLost):
        first.result()
    assert Job.objects.get(pk=job).state == "pending"
    assert not query("SELECT 1 FROM scheduling_beat")
    assert first.do(elect) is None


def test_new_term_waits_for_a_commit_of_the_old_leader(
    workers: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A81: what an old leader commits, it commits before the new term begins."""
    first, second = workers
    gate = "SELECT pg_advisory_xact_lock(424242); COMMIT"

    def write() -> None:
        with leadership.fenced(1), transaction.atomic():
            execute("DELETE FROM jobs_job")

    assert first.do(elect) == 1
    query("SELECT pg_advisory_lock(424242)")
    monkeypatch.setattr(leadership, "_COMMIT", leadership._COMMIT.replace("COMMIT", gate))
    first.begin(write)
    waiting = (
        "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
    )
    wait_for(lambda: query(waiting)[0]["n"] == 1, 10, "the old leader to have checked its term")
    second.begin(leadership._begin_term)
    wait_for(lambda: query(waiting)[0]["n"] == 2, 10, "the new leader to wait")
    assert Term.objects.get().term == 1
    query("SELECT pg_advisory_unlock(424242)")
    first.result()
    assert second.result() == 2


def test_statement_without_a_transaction_is_fenced(workers: tuple[Worker, Worker]) -> None:
    first, second = workers
    assert first.do(elect) == 1
    assert second.do(leadership._begin_term) == 2

    def write() -> None:
        with leadership.fenced(1):
            execute("DELETE FROM jobs_job")

    with pytest.raises(LeadershipLost):
        first.do(write)


def test_session_of_a_stopped_leader_ends(workers: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """A81: PostgreSQL ends it, whether it stopped in a transaction or between two."""
    first, second = workers
    monkeypatch.setattr(leadership, "_SESSION", leadership._SESSION.replace("'30s'", "'300ms'"))
    assert first.do(elect) == 1
    assert second.do(lambda: leadership.wait_for_term(TIMEOUT_SECONDS)) == 2

    first.do(close_old_connections)  # as django-q2 does before each task

    def stop_in_transaction() -> Any:
        with transaction.atomic():
            return first.do(lambda: leadership.wait_for_term(TIMEOUT_SECONDS))

    assert second.do(stop_in_transaction) == 3


def test_every_write_of_a_cycle_and_of_its_chores_is_fenced(
    workers: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A81: the session only reads, except in transactions."""
    first, _ = workers
    tenant = make_tenant()
    user = make_member(tenant)
    make_node(gpus=2)
    submit(user, tenant, gpu_count=1)
    submit(user, tenant, gpu_count=2)
    submit(user, tenant, gpu_count=1, array=ArrayRequest(count=2))
    failures: list[str] = []
    monkeypatch.setattr(chores.logger, "exception", lambda *args: failures.append(str(args)))
    set_autocommit = DatabaseWrapper.set_autocommit

    def begin(wrapper: DatabaseWrapper, autocommit: bool, *args: Any, **options: Any) -> None:
        set_autocommit(wrapper, autocommit, *args, **options)
        if not autocommit:
            wrapper.connection.execute("SET TRANSACTION READ WRITE")

    def cycles() -> None:
        assert elect() == 1
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        with monkeypatch.context() as patch:
            patch.setattr(DatabaseWrapper, "set_autocommit", begin)
            for _ in range(3):
                tasks.cycle("test")

    first.do(cycles)
    assert failures == []
    assert Job.objects.filter(state="scheduled").exists()
    assert Job.objects.filter(state="pending", reason="capacity").exists()
    assert query("SELECT 1 FROM scheduling_beat") and query("SELECT 1 FROM scheduling_recordedcycle")


def test_cycle_writes_its_reasons_after_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an action that locks several of its jobs in another order."""
    make_node(gpus=1)
    tenant = make_tenant()
    job_id = submit(make_member(tenant), tenant, gpu_count=1, not_before="2099-01-01T00:00:00Z")
    set_reasons, tries = pending_reasons.set_reasons, list[int]()

    def deadlock_once(*args: Any) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("deadlock detected") from DeadlockDetected()
        return set_reasons(*args)

    monkeypatch.setattr(pending_reasons, "set_reasons", deadlock_once)
    Job.objects.filter(pk=job_id).update(reason="scheduler_behind")
    run_cycle()
    assert (Job.objects.get(pk=job_id).reason, len(tries)) == ("not_before", 2)
