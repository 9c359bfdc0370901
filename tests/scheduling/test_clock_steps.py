"""The clock of the database is set back while jobs run (A53)."""

import pytest
from django.db import OperationalError

from jobs.models import Job
from scheduling.worker import clock_steps
from tenants.models import UsageEntry
from tests.nodes.ledger_world import World

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def clock(monkeypatch):
    """The clock of a database on the same machine."""
    monkeypatch.setattr(clock_steps, "_seconds_ahead", lambda: 0.0)
    return clock_steps.DatabaseClock()


def charged(world):
    return sum(
        e.gpus * (e.ended_at - e.started_at).total_seconds() for e in UsageEntry.objects.filter(tenant=world.tenant)
    )


@pytest.mark.parametrize("step", [3, 3600])
@pytest.mark.parametrize("passed", [600, 7200])
def test_job_is_charged_for_as_long_as_it_ran(passed, step, clock):
    world = World()
    world.submit("whole")
    for number in (0, 1, 0, 1):
        world.sync(number)
    world.let_pass(passed)
    world.time.set_servers_clock_back(step)
    clock.host_was_set_back(step)
    world.let_pass(400)
    world.exit(0, 0)
    world.exit(1, 0)
    world.finish()
    assert charged(world) == pytest.approx(2 * (passed + 400), abs=2)


def test_times_stay_if_only_the_clock_of_this_host_was_set_back(clock, monkeypatch):
    world = World()
    world.submit("whole")
    for number in (0, 1, 0, 1):
        world.sync(number)
    job = Job.objects.get(tenant=world.tenant)
    monkeypatch.setattr(clock_steps, "_seconds_ahead", lambda: 3600.1)
    clock.host_was_set_back(3600)
    assert Job.objects.get(pk=job.pk).started_at == job.started_at is not None


def test_step_is_logged_if_the_database_is_away(clock, monkeypatch, caplog):
    """The cluster goes on."""

    def fail():
        raise OperationalError("away")

    monkeypatch.setattr(clock_steps, "_seconds_ahead", fail)
    clock.host_was_set_back(3)
    assert "what runs now will be charged too little" in caplog.text


def test_clock_of_the_database_is_compared_with_the_hosts(transactional_db):
    assert abs(clock_steps._seconds_ahead()) < 1.0
