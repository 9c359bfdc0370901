"""A storage that hangs, such as a directory of an NFS server that is gone, leaves threads for other requests."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpusched.lib import storage
from gpusched.lib.api.problems import Problem
from tests.waiting import wait_for


@pytest.fixture
def slots(settings: Any, monkeypatch: pytest.MonkeyPatch) -> storage.Slots:
    settings.ENV = replace(settings.ENV, web_threads=4)
    monkeypatch.setattr(storage, "SLOT_SECONDS", 0.1)
    monkeypatch.setattr(storage, "slots", storage.Slots())
    return storage.slots


def in_threads(work: Callable[[], object], number: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads


def test_storage_that_hangs_occupies_half_of_the_threads(slots: storage.Slots) -> None:
    """Four nodes with 30 logs occupied all 16 threads within 40 s: nothing was answered, not even /ready."""
    answers, waiting = threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        with storage.storage_errors():
            waiting.release()
            answers.wait(30)

    threads = in_threads(hang, 2)
    assert all(waiting.acquire(timeout=10) for _ in threads)
    for _ in range(2):  # after a moment, and then at once
        with pytest.raises(Problem) as raised, storage.storage_errors():
            pass
        assert (raised.value.status, raised.value.code) == (503, "storage_unavailable")
    answers.set()
    for thread in threads:
        thread.join(10)
    with storage.storage_errors():
        pass


def test_request_waits_for_a_slot_and_needs_one(slots: storage.Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SLOT_SECONDS", 30.0)
    done: list[int] = []

    def work() -> None:
        with storage.storage_errors(), storage.storage_errors():  # as a read of the end of a log, which asks its size
            done.append(1)

    threads = in_threads(work, 8)
    wait_for(lambda: len(done) == 8, 10, "all requests to get a slot")
    for thread in threads:
        thread.join(10)


@pytest.mark.parametrize(("error", "has_traceback"), [(OSError(28, "no space"), False), (KeyError("x"), True)])
def test_full_disk_is_a_log_line_without_a_traceback(
    slots: storage.Slots, caplog: pytest.LogCaptureFixture, error: Exception, has_traceback: bool
) -> None:
    """Each request that it failed logged one."""
    with pytest.raises(Problem), storage.storage_errors():
        raise error
    [record] = caplog.records
    assert (bool(record.exc_info), str(error) in record.getMessage()) == (has_traceback, True)
