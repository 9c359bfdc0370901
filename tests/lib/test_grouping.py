"""Calls of several threads share statements, and never an error that is not theirs."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import psycopg
import pytest
from django.db import DataError, OperationalError, transaction

from gpusched.lib.db import grouping
from gpusched.lib.db.grouping import MAX_CALLS, Grouped
from tests.waiting import wait_for

FAULTY = "faulty"


class Statement:
    """Stands for a statement: records each group, and blocks in the first one until `proceed` is set."""

    def __init__(self, error: Callable[[], Exception] = DataError) -> None:
        self.groups: list[list[str]] = []
        self.proceed = threading.Event()
        self._error = error

    def __call__(self, arguments):
        self.groups.append(list(arguments))
        if len(self.groups) == 1:
            self.proceed.wait(20)
        if FAULTY in arguments:
            raise self._error()
        return [argument.upper() for argument in arguments]


def outage() -> Exception:
    error = OperationalError("the connection is lost")
    error.__cause__ = psycopg.errors.AdminShutdown()
    return error


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(grouping, "MAX_WAIT_SECONDS", 20)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(MAX_CALLS + 10) as pool:
        yield pool


def call_during_another(threads: ThreadPoolExecutor, statement: Statement, arguments: list[str]) -> list[Future[str]]:
    """Call with "first", then with these arguments while that call is in progress."""
    grouped = Grouped(statement)
    calls = [threads.submit(grouped, "first")]
    wait_for(lambda: statement.groups)
    for number, argument in enumerate(arguments):
        calls.append(threads.submit(grouped, argument))
        wait_for(partial(_has_waiting, grouped, number + 1))
    statement.proceed.set()
    return calls


def _has_waiting(grouped: Grouped[str, str], number: int) -> bool:
    return len(grouped._waiting) == number


def test_lone_call_runs_at_once_and_alone():
    statement = Statement()
    statement.proceed.set()
    grouped = Grouped(statement)
    assert [grouped("a"), grouped("b")] == ["A", "B"]
    assert statement.groups == [["a"], ["b"]]


def test_calls_that_arrive_during_a_call_share_the_next_one(threads, patient):
    statement = Statement()
    calls = call_during_another(threads, statement, ["a", "b", "c"])
    assert [call.result(20) for call in calls] == ["FIRST", "A", "B", "C"]
    assert statement.groups == [["first"], ["a", "b", "c"]]


def test_group_is_bounded(threads, patient):
    statement = Statement()
    arguments = [f"a{number}" for number in range(MAX_CALLS + 3)]
    calls = call_during_another(threads, statement, arguments)
    assert [call.result(20) for call in calls[1:]] == [argument.upper() for argument in arguments]
    assert [len(group) for group in statement.groups] == [1, MAX_CALLS, 3]


def test_only_the_call_at_fault_fails(threads, patient):
    statement = Statement()
    calls = call_during_another(threads, statement, ["a", FAULTY, "b"])
    assert [calls[number].result(20) for number in (0, 1, 3)] == ["FIRST", "A", "B"]
    with pytest.raises(DataError):
        calls[2].result(20)
    assert statement.groups == [["first"], ["a", FAULTY, "b"], ["a"], [FAULTY], ["b"]]


@pytest.mark.parametrize("error", [outage, ValueError])
def test_no_call_is_repeated_when_it_may_have_been_executed(threads, patient, error):
    statement = Statement(error)
    calls = call_during_another(threads, statement, ["a", FAULTY])
    assert calls[0].result(20) == "FIRST"
    for call in calls[1:]:
        with pytest.raises(type(error())):
            call.result(20)
    assert statement.groups == [["first"], ["a", FAULTY]]


def test_call_does_not_wait_for_a_statement_that_hangs(threads):
    statement = Statement()
    grouped = Grouped(statement)
    first = threads.submit(grouped, "first")
    wait_for(lambda: statement.groups)
    assert [threads.submit(grouped, argument).result(10) for argument in ("a", "b")] == ["A", "B"]
    assert not first.done()
    statement.proceed.set()
    assert first.result(20) == "FIRST"
    assert grouped("c") == "C"


def test_many_threads_get_their_own_results(threads):
    grouped = Grouped(_doubled)
    assert list(threads.map(grouped, range(5000))) == [2 * number for number in range(5000)]


def _doubled(arguments: Sequence[int]) -> list[int]:
    return [argument * 2 for argument in arguments]


@pytest.mark.django_db
def test_call_in_a_transaction_runs_alone(threads):
    statement = Statement()
    grouped = Grouped(statement)
    first = threads.submit(grouped, "first")
    wait_for(lambda: statement.groups)
    with transaction.atomic():
        assert grouped("a") == "A"
    statement.proceed.set()
    assert first.result(20) == "FIRST"
