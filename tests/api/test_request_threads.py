"""The threads that work on requests: so many and no more, in the order of the requests; who stands aside makes room."""

import threading

import pytest
from django.db import connection, transaction

from gpusched.lib.db.sql import query
from gpusched.lib.web import request_threads
from gpusched.lib.web.request_threads import RequestThreads, client_gone_check, yield_slot
from tests.waiting import assert_stays, wait_for


@pytest.fixture
def threads():
    created = RequestThreads(2)
    yield created
    created.shutdown()


@pytest.fixture
def gate():
    """Waiting threads continue at the end of the test at the latest."""
    created = threading.Event()
    yield created
    created.set()


def test_requests_run_in_order_up_to_the_maximum(threads, gate):
    begun = []

    def work(number):
        begun.append(number)
        gate.wait(10)
        return number

    answers = [threads.submit(work, number) for number in range(6)]
    wait_for(lambda: len(begun) == 2)
    assert_stays(lambda: (sorted(begun), len(threads._threads)) == ([0, 1], 2), 0.05)
    gate.set()
    assert [answer.result(10) for answer in answers] == list(range(6))
    assert sorted(begun[2:4]) == [2, 3]


def test_yielded_slot_is_used_and_taken_back(threads, gate):
    inside = threading.Semaphore(0)

    def wait():
        with yield_slot():
            inside.release()
            gate.wait(10)
        return "back"

    answers = [threads.submit(wait) for _ in range(3)]
    for _ in answers:
        assert inside.acquire(timeout=10)
    assert threads.submit(lambda: "answered").result(10) == "answered"
    gate.set()
    assert [answer.result(10) for answer in answers] == ["back"] * 3
    wait_for(lambda: len(threads._threads) == 2)


def test_threads_without_requests_end_but_for_two(monkeypatch, gate):
    """Each has a database connection, whose process takes memory until the server ends."""
    monkeypatch.setattr(request_threads, "IDLE_SECONDS", 0.1)
    threads = RequestThreads(8)
    answers = [threads.submit(gate.wait, 10) for _ in range(8)]
    wait_for(lambda: len(threads._threads) == 8)
    gate.set()
    assert all(answer.result(10) for answer in answers)
    wait_for(lambda: len(threads._threads) == 2)
    assert_stays(lambda: len(threads._threads) == 2, 0.3)
    gate.clear()
    answers = [threads.submit(gate.wait, 10) for _ in range(8)]
    wait_for(lambda: len(threads._threads) == 8)
    gate.set()
    assert all(answer.result(10) for answer in answers)
    threads.shutdown()
    assert threads._threads == set()


def test_requests_one_after_the_other_have_the_same_thread(threads, gate):
    """So those that are not needed can end."""
    both = [threads.submit(gate.wait, 10) for _ in range(2)]
    wait_for(lambda: len(threads._threads) == 2)
    gate.set()
    assert all(answer.result(10) for answer in both)
    wait_for(lambda: len(threads._waiting) == 2)

    def used():
        wait_for(lambda: len(threads._waiting) == 2)
        return threads.submit(threading.get_ident).result(10)

    assert len({used() for _ in range(20)}) == 1


def test_no_request_is_lost_while_threads_end(monkeypatch):
    monkeypatch.setattr(request_threads, "IDLE_SECONDS", 0.0005)
    threads = RequestThreads(6)
    for _ in range(100):
        answers = [threads.submit(lambda number: number, number) for number in range(30)]
        assert [answer.result(10) for answer in answers] == list(range(30))
        assert len(threads._threads) <= 6
    threads.shutdown()


def test_error_reaches_its_caller_and_the_thread_continues(threads):
    def fails():
        raise ValueError("of the view")

    with pytest.raises(ValueError, match="of the view"):
        threads.submit(fails).result(10)
    assert [threads.submit(lambda: "answered").result(10) for _ in range(5)] == ["answered"] * 5
    assert len(threads._threads) <= 2


def test_request_sees_that_its_client_has_gone(threads, gate):
    told, begun = [], threading.Event()

    def work():
        is_left = client_gone_check()
        told.append(is_left())
        begun.set()
        gate.wait(10)
        told.append(is_left())

    answer = threads.submit(work)
    assert begun.wait(10)
    answer.cancel()
    gate.set()
    wait_for(lambda: len(told) == 2)
    assert told == [False, True]
    assert not client_gone_check()()


def test_queued_work_of_a_gone_client_never_starts(threads, gate):
    begun: list[str] = []
    for _ in range(2):
        threads.submit(gate.wait, 10)
    answer = threads.submit(begun.append, "begun")
    assert answer.cancel()
    gate.set()
    assert threads.submit(lambda: "answered").result(10) == "answered"
    assert begun == []


def test_no_work_starts_when_the_process_ends(threads):
    assert threads.submit(lambda: "answered").result(10) == "answered"
    threads.shutdown()
    assert not threads._threads
    with pytest.raises(RuntimeError, match="ends"):
        threads.submit(lambda: "answered")


def open_connection():
    connection.ensure_connection()
    return connection.connection


@pytest.mark.django_db(transaction=True)
def test_yielding_thread_closes_its_connection(threads):
    def work():
        mine = open_connection()
        with yield_slot():
            return mine.closed

    assert threads.submit(work).result(10) is True


@pytest.mark.django_db(transaction=True)
def test_yielding_thread_in_a_transaction_keeps_its_connection(threads):
    def work():
        with transaction.atomic():
            mine = open_connection()
            with yield_slot():
                pass
            return query("SELECT 1 AS n"), connection.connection is mine

    assert threads.submit(work).result(10) == ([{"n": 1}], True)


@pytest.mark.django_db(transaction=True)
def test_ending_thread_closes_its_connection():
    threads = RequestThreads(1)
    mine = threads.submit(open_connection).result(10)
    threads.shutdown()
    assert mine.closed


def test_yielding_outside_of_requests_does_nothing():
    with yield_slot():
        pass
