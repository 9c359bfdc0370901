"""The use of tenants in a simulation is what a live cluster would count: decayed, of late, and over a month."""

from math import log

import pytest

from scheduling.engine.model import Policy, RunningJob, Tenant
from scheduling.engine.queue.fairshare import average_gpus
from scheduling.simulator.runs.usage import Ledger, Use
from tests.engine.scenario import ask

HOUR = 3600.0
POLICY = Policy(usage_half_life_seconds=10 * HOUR)


def test_use_counts_half_after_a_half_life() -> None:
    """A17."""
    use = Use(POLICY, 0.0)
    use.hold(4, 0.0)
    use.hold(0, HOUR)
    at_end = use.decayed(HOUR)
    assert at_end == pytest.approx(4 * HOUR, rel=0.05)
    assert use.decayed(11 * HOUR) == pytest.approx(at_end / 2)


def test_constant_gpus_are_the_average_use() -> None:
    use = Use(POLICY, 0.0)
    use.hold(3, 0.0)
    assert average_gpus(use.decayed(1000 * HOUR), POLICY) == pytest.approx(3)
    assert use.decayed(1000 * HOUR) == pytest.approx(3 * 10 * HOUR / log(2))


def test_use_does_not_depend_on_the_number_of_reads() -> None:
    seldom, often = Use(POLICY, 0.0), Use(POLICY, 0.0)
    seldom.hold(2, 0.0)
    for minute in range(600):
        often.hold(2, minute * 60.0)
    assert often.decayed(10 * HOUR) == pytest.approx(seldom.decayed(10 * HOUR))
    assert often.since(3 * HOUR, 10 * HOUR) == pytest.approx(seldom.since(3 * HOUR, 10 * HOUR)) == 14 * HOUR


def test_window_excludes_earlier_use() -> None:
    use = Use(POLICY, 100.0)
    use.hold(8, 200.0)
    use.hold(2, 300.0)
    use.hold(0, 400.0)
    assert use.since(0.0, 500.0) == 1000.0
    assert use.since(250.0, 350.0) == 8 * 50 + 2 * 50
    assert use.since(390.0, 1e6) == 20.0


def test_snapshot_has_the_use_of_each_tenant() -> None:
    tenants = (Tenant(1, "a"), Tenant(2, "b"))
    ledger = Ledger(tenants, Policy(window_seconds=HOUR), 0.0)
    ledger.changed([RunningJob(7, 1, ask(4), (), 0.0)], 0.0)
    ledger.changed([], 2 * HOUR)
    first, second = ledger.tenants(2.5 * HOUR)
    assert first.window_cost == pytest.approx(4 * 0.5)
    assert first.history_gpu_seconds == pytest.approx(8 * HOUR)
    assert first.usage_gpu_seconds == pytest.approx(8 * HOUR, rel=0.02)
    assert (second.window_cost, second.history_gpu_seconds, second.usage_gpu_seconds) == (0, 0, 0)
