"""The cache of values in memory: age, bound, and use by many threads at once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from gpusched.lib import cache
from gpusched.lib.cache import Cache


class Clock:
    """The clock of the cache, which stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cache, "time", clock)
    return clock


def numbers() -> Iterator[int]:
    return iter(count(1))


def test_value_lasts_its_time(clock: Clock) -> None:
    values: Cache[str, int] = Cache(seconds=10)
    source = numbers()
    assert [values.get("a", source.__next__) for _ in range(2)] == [1, 1]
    clock.now += 10.1
    assert values.last("a", None) == 1
    assert values.get("a", source.__next__) == 2


def test_value_that_is_not_accepted_is_computed_again(clock: Clock) -> None:
    values: Cache[str, int] = Cache()
    source = numbers()
    assert values.get("a", source.__next__) == 1
    assert values.get("a", source.__next__, lambda value: value >= 1) == 1
    assert values.get("a", source.__next__, lambda value: value >= 5) == 2


def test_oldest_entry_goes_first_beyond_the_bound() -> None:
    values: Cache[int, int] = Cache(max_entries=3)
    for number in range(5):
        values.put(number, number)
    values.put(2, 2)
    values.put(5, 5)
    assert [values.last(number, None) for number in range(6)] == [None, None, 2, None, 4, 5]


def test_failed_computation_stores_nothing_and_frees_the_next_one() -> None:
    values: Cache[str, int] = Cache()
    with pytest.raises(ZeroDivisionError):
        values.get("a", lambda: 1 // 0)
    assert values.get("a", lambda: 7) == 7


def test_concurrent_readers_share_one_computation() -> None:
    values: Cache[str, int] = Cache(max_entries=100)
    begun, gate, source = threading.Barrier(8), threading.Event(), numbers()

    def compute() -> int:
        gate.wait(20)
        return next(source)

    def read() -> int:
        begun.wait(20)
        return values.get("a", compute)

    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(read) for _ in range(7)]
        begun.wait(20)
        gate.set()
        assert [future.result(20) for future in reads] == [1] * 7


def test_readers_get_the_stale_value_while_one_computes_and_wait_when_it_is_too_old(clock: Clock) -> None:
    values: Cache[str, int] = Cache(seconds=10, stale_seconds=5)
    values.put("a", 1)
    begun, gate = threading.Event(), threading.Event()

    def compute() -> int:
        begun.set()
        gate.wait(20)
        return 2

    with ThreadPoolExecutor(2) as pool:
        clock.now += 12
        first = pool.submit(values.get, "a", compute)
        begun.wait(20)
        assert values.get("a", lambda: 99) == 1
        clock.now += 5
        second = pool.submit(values.get, "a", lambda: 99)
        gate.set()
        assert (first.result(20), second.result(20)) == (2, 2)


def test_concurrent_updates_lose_nothing_and_keep_the_bound() -> None:
    """A reader of a value sees it whole, because an update replaces it."""
    values: Cache[int, dict[int, int]] = Cache(max_entries=4)

    def work(worker: int) -> None:
        for turn in range(500):
            values.update(0, lambda value, key=worker * 500 + turn: {**(value or {}), key: 1})  # type: ignore[misc]
            assert sum(values.last(0, {}).values()) > 0
            values.get(worker, dict)

    values.put(0, {})
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, 0), pool.submit(work, 1), pool.submit(work, 2)]:
            future.result(60)
    assert len(values.last(0, {})) == 1500
    assert len(values._entries) <= 4
