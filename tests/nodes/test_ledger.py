"""The ledger equals wall time x GPUs to the second (A53), through all that ends attempts, with clocks that are set."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from gpusched.protocol.agent_messages import Ended, Started
from jobs.models import Attempt, Job
from nodes.ranks import agent_clock
from tenants.models import UsageEntry
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit
from tests.nodes.ledger_world import STEPS, World, live

pytestmark = pytest.mark.django_db(transaction=True)
RUN = [("submit", "whole"), ("sync", 0), ("sync", 1), ("sync", 0), ("sync", 1), ("let_pass", 600)]
STEPPED = [("set_clock", 0, -3600), ("set_clock", 1, 3600), ("let_pass", 500)]


@pytest.mark.parametrize("old", [None, 3600.0, -3600.0, 4.0])
@pytest.mark.parametrize(
    "steps",
    [
        [*RUN, *STEPPED, ("act", "preempt"), ("sync", 0), ("sync", 1), ("let_pass", 900)],
        [*RUN, *STEPPED, ("act", "requeue"), ("sync", 0), ("sync", 1), ("submit", "shared"), ("let_pass", 900)],
        [*RUN, *STEPPED, ("lose", 0), ("let_pass", 900), ("lose", 1), ("let_pass", 50)],
        [("submit", "gang"), *RUN[1:], *STEPPED, ("exit", 0, 3), ("sync", 0), ("let_pass", 30)],
        [*RUN[:3], *STEPPED, ("exit", 0, 0), ("exit", 1, 0), ("let_pass", 7000)],
    ],
    ids=["preemption", "requeue", "loss", "gang", "outage"],
)
def test_ledger_equals_wall_time(steps, old):
    """A53, A57: also with older agents, on nodes whose clock is wrong, that do not say how long ago something was."""
    live(World(is_old=old is not None, off=old or 0.0), steps)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_ledger_equals_wall_time_for_any_history(steps):
    """A53: in short; tests/e2e/test_ledger.py tries more."""
    live(World(), [*RUN, *steps[:8]])


@pytest.mark.parametrize("step", [3600, -3600])
def test_clock_change_during_a_job_does_not_change_the_ledger(step):
    """A53"""
    world = World()
    live(
        world,
        [("submit", "whole"), ("sync", 0), ("sync", 1), ("sync", 0), ("sync", 1), ("let_pass", 600), ("set_clock", 0, step),
         ("set_clock", 1, step), ("let_pass", 1000), ("exit", 0, 0), ("exit", 1, 0)],
    )  # fmt: skip
    assert sum(e.gpus * (e.ended_at - e.started_at).total_seconds() for e in UsageEntry.objects.filter(tenant=world.tenant)) == (
        pytest.approx(3200, abs=2)
    )  # fmt: skip


@pytest.mark.parametrize("ago", [-5.0, 1e300, float("inf"), 1e9])
def test_agent_times_never_exceed_the_attempt_or_the_present(ago):
    """A53, A55: an agent is not trusted blindly."""
    world = World()
    world.submit("whole")
    machine = next(one for one in world.machines if one.agent.sync().assignments)
    [order] = machine.agent.sync().assignments
    long_ago, far_ahead = "1950-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
    machine.agent.sync(
        Started(key=order.key, at=long_ago, pid=1, seconds_ago=ago), held=[order.key], running=[order.key]
    )
    machine.agent.sync(
        Ended(key=order.key, at=far_ahead, reason="exited", exit_code=0, started_at=long_ago, seconds_ago=ago),
        at="soon",
    )
    for entry in UsageEntry.objects.filter(tenant=world.tenant):
        assert 0 <= (entry.ended_at - entry.started_at).total_seconds() < 30


@pytest.mark.parametrize(("seconds_ago", "off"), [(0.0, 0.8), (None, 4)])
def test_nearly_right_clock_is_accepted(seconds_ago, off):
    """A message takes time; the times in it are then the better ones."""
    at = (datetime.now(UTC) - timedelta(seconds=off)).isoformat()
    started = Started(key="1.1.0", at=at, pid=1, seconds_ago=seconds_ago)
    assert agent_clock.to_server_time(started, at) is started


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("off", [300.0, 3600.0, -3600.0])
def test_run_times_are_right_with_late_reports_and_a_wrong_clock(off, is_old):
    """A32, A53, A57: the server was down from the start until well after the end."""
    world = World(is_old=is_old, off=off)
    live(world, [*RUN[:3], ("let_pass", 100), ("exit", 0, 0), ("exit", 1, 0), ("let_pass", 600)])
    [rank] = [rank for machine in world.machines for rank in machine.ranks.values()]
    entries = UsageEntry.objects.filter(tenant=world.tenant)
    assert entries
    for entry in entries:
        assert entry.started_at.timestamp() + world.time.passed == pytest.approx(rank.began, abs=2)
        assert entry.ended_at.timestamp() + world.time.passed == pytest.approx(rank.ended, abs=2)


def test_share_of_a_device_costs_the_same_if_its_memory_becomes_unknown():
    """A53: the driver does not answer while the agent starts again."""
    tenant, node = make_tenant(), make_node(gpus=1, memory_mb=80_000)
    submit(make_member(tenant), tenant, gpu_sharing="shared", gpu_memory_mb=8000)
    run_cycle()
    [key] = node.start_all()
    node.devices = [replace(device, memory_mb=None) for device in node.devices]
    node.sync(facts=node.facts())
    node.end(key)
    assert UsageEntry.objects.get().gpus == 0.1


def test_times_stay_in_order_when_the_server_is_ahead_of_its_database(user, tenant, monkeypatch):
    """As with several web servers, one of which has a wrong clock."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(minutes=10)

    monkeypatch.setattr(agent_clock, "datetime", Ahead)
    node, job_id = make_node(), submit(user, tenant)
    run_cycle()
    [order] = node.sync().assignments
    began = (timezone.now() - timedelta(milliseconds=50)).isoformat()
    node.sync(Started(key=order.key, at=began, pid=1, seconds_ago=0.0), held=[order.key], running=[order.key])
    ended = Ended(key=order.key, at=timezone.now().isoformat(), reason="exited", exit_code=0, started_at=began,
                  seconds_ago=0.0)  # fmt: skip
    node.sync(ended, held=[], running=[])
    job, attempt = Job.objects.get(pk=job_id), Attempt.objects.get(job_id=job_id)
    assert job.started_at == attempt.started_at and job.ended_at == attempt.ended_at
    times = [job.submitted_at, attempt.scheduled_at, job.started_at, job.ended_at, timezone.now()]
    known = [at for at in times if at is not None]
    assert known == sorted(known) and len(known) == 5
