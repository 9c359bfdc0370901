"""Chores of the cycles' worker: each at its own pace, and a failure stops no other."""

from types import SimpleNamespace

import pytest

from nodes import held_idle
from nodes.telemetry import samples
from scheduling.cycle import run
from scheduling.policy import env_defaults
from scheduling.whatif import forecasting
from scheduling.worker import chores, housekeeping, leadership, tasks


@pytest.fixture
def done(monkeypatch):
    """Record the chores that ran, with a clock that the test moves."""
    found, clock = [], [1000.0]
    monkeypatch.setattr(chores, "policy", SimpleNamespace(values=env_defaults))
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    for module, name in ((samples, "take_samples"), (held_idle, "review")):
        monkeypatch.setattr(module, name, lambda *given, name=name: found.append(name))

    def after(seconds):
        found.clear()
        clock[0] += seconds
        chores.run_due()
        return sorted(found)

    return after


def test_each_chore_runs_at_its_own_pace(done):
    assert done(0) == ["review", "take_samples"]
    assert done(1) == []
    assert done(14) == ["take_samples"]
    assert done(15) == ["review", "take_samples"]


def test_failed_chore_stops_nothing_else_and_is_retried(done, monkeypatch):
    def fail(*given):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(samples, "take_samples", fail)
    assert done(0) == ["review"]
    assert done(30) == ["review"]


def test_worker_runs_chores_after_each_cycle(monkeypatch):
    order = []
    monkeypatch.setattr(leadership, "wait_for_term", lambda seconds: 1)
    monkeypatch.setattr(run, "run_paced", lambda trigger: order.append(trigger))
    monkeypatch.setattr(chores, "run_due", lambda: order.append("upkeep"))
    tasks.cycle("tick")
    assert order == ["tick", "upkeep"]
    monkeypatch.setattr(leadership, "wait_for_term", lambda seconds: None)
    tasks.cycle("tick")  # another worker leads
    assert order == ["tick", "upkeep"]


def test_housekeeping_rolls_up_and_drops_old_rows(monkeypatch):
    monkeypatch.setattr(samples, "roll_up", lambda: 5)
    monkeypatch.setattr(samples, "drop_old", lambda sample_days, rollup_days: 1000 * sample_days + rollup_days)
    assert tasks.roll_up() == 5 + 1000 + 395


def test_failed_forecasts_leave_the_other_tasks_alone(monkeypatch):
    def fail():
        raise RuntimeError("no answer of the engine")

    monkeypatch.setattr(forecasting, "note", fail)
    monkeypatch.setattr(samples, "roll_up", lambda: 5)
    monkeypatch.setattr(samples, "drop_old", lambda *days: 0)
    with pytest.raises(RuntimeError):
        tasks.forecast()
    assert tasks.roll_up() == 5
    assert "forecast" in housekeeping.EVERY_MINUTES


@pytest.mark.django_db(transaction=True)
def test_cycles_on_events_share_a_sweep_and_a_tick_has_its_own(monkeypatch):
    swept: list[str] = []
    monkeypatch.setattr(run, "mark_silent_nodes_lost", lambda: swept.append("sweep"))
    for _ in range(3):
        run.run("event")
    assert len(swept) == 1
    run.run("tick")
    assert len(swept) == 2
