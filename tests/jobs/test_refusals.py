"""Refusals of one tenant are paced and do not delay those of another (A61)."""

import asyncio
import time

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.web.request_threads import RequestThreads, answered, hold_answer
from jobs.submit import refusals
from jobs.submit.refusals import Pace


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_refusals_within_the_burst_are_answered_at_once(clock):
    pace = Pace(5, 20, 10.0, clock)
    assert [pace.wait_seconds(1) for _ in range(20)] == pytest.approx([0.0] * 20)


def test_refusals_beyond_the_burst_are_answered_at_the_even_pace(clock):
    """A61."""
    pace = Pace(5, 20, 10.0, clock)
    pauses = [pace.wait_seconds(1) for _ in range(23)]
    assert pauses[20:] == pytest.approx([0.2, 0.4, 0.6])


def test_refusals_of_another_tenant_are_not_delayed(clock):
    """A61."""
    pace = Pace(5, 20, 10.0, clock)
    for _ in range(100):
        pace.wait_seconds(1)
    assert pace.wait_seconds(2) == 0.0


def test_refusal_is_never_delayed_longer_than_the_limit(clock):
    pace = Pace(5, 20, 10.0, clock)
    assert max(pace.wait_seconds(1) for _ in range(1000)) == 10.0
    clock.now += 10.2
    assert pace.wait_seconds(1) == pytest.approx(0.0)


def test_tenant_that_pauses_has_its_burst_again(clock):
    pace = Pace(5, 20, 10.0, clock)
    for _ in range(100):
        pace.wait_seconds(1)
    clock.now += 60.0
    assert [pace.wait_seconds(1) for _ in range(20)] == pytest.approx([0.0] * 20)


def test_refusal_is_raised_and_takes_a_turn(monkeypatch, clock):
    pace = Pace(5, 1, 10.0, clock)
    monkeypatch.setattr(refusals, "_pace", pace)
    with pytest.raises(Problem, match="no node"), refusals.paced(7):
        raise Problem(422, "never_fits", "no node")
    with refusals.paced(7):
        pass
    assert pace.wait_seconds(7) == pytest.approx(0.2)


def test_delayed_answer_leaves_its_thread_to_other_requests():
    threads = RequestThreads(1)

    def delayed():
        hold_answer(0.3)
        return "delayed"

    async def requests():
        began = time.monotonic()
        slow = asyncio.ensure_future(answered(threads, delayed))
        await asyncio.sleep(0)
        assert await answered(threads, lambda: "quick") == "quick"
        assert not slow.done()
        assert await slow == "delayed"
        return time.monotonic() - began

    assert asyncio.run(requests()) >= 0.3
    threads.shutdown()
