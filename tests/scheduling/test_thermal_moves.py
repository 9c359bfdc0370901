"""Jobs on GPUs that stay hot: moved if that is wanted and gains something, else only told of (A15, A16, A19)."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from gpusched.lib.api.problems import Problem
from gpusched.protocol.agent_messages import Reading
from jobs.listing import representation
from jobs.models import Attempt, Job
from nodes.health import incidents, thermal
from nodes.models import Device, Incident
from scheduling import policy
from scheduling.worker import thermal_moves
from tenants.models import Tenant
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def pass_minutes(minutes):
    """Age the state by this time, without other changes."""
    ago = timedelta(minutes=minutes)
    Incident.objects.update(since=F("since") - ago)
    Incident.objects.exclude(until=None).update(until=F("until") - ago)
    Attempt.objects.filter(ended_at=None).update(started_at=F("started_at") - ago)


def warm(node, celsius=91, index=0):
    node.sync(readings=[Reading(uuid=node.devices[index].uuid, temperature_celsius=celsius, throttle_reasons=0)])


def move_incidents():
    return [(row["kind"], row["cause"]) for row in incidents.latest(20) if row["kind"] in ("moved", "would_move")]


@pytest.fixture
def hot(user, tenant):
    """A node whose only GPU has been hot for eleven minutes, with a job on it; `hot.job`."""
    node: Any = make_node(gpus=1)
    node.job = submit(user, tenant)
    run_cycle()
    node.start_all()
    warm(node)
    pass_minutes(11)
    return node


@pytest.fixture
def moving():
    policy.change({"thermal_moves": "move"}, actor="root")


def end(node):
    """Let its job obey the stop."""
    node.end(*node.held, exit_code=None, signal=15, reason="preempted")
    run_cycle()


def test_monitor_records_a_would_be_move_once_by_default(hot):
    make_node(gpus=1)
    assert [thermal_moves.move_off_hot_gpus(), thermal_moves.move_off_hot_gpus()] == [1, 0]
    cause = f"would have moved job {hot.job} off GPU 0 of {hot.name} after 11 min of heat (91 °C)"
    assert move_incidents() == [("would_move", cause)]
    assert Job.objects.get(pk=hot.job).state == "running"


def test_moved_job_gets_notice_and_keeps_its_queue_time(hot, moving, user, tenant):
    """A16"""
    queued_at = Job.objects.get(pk=hot.job).submitted_at
    cool = make_node(gpus=1)
    assert thermal_moves.move_off_hot_gpus() == 1
    [stop] = hot.sync().assignments
    assert stop.reason == "preempted"
    end(hot)
    assert cool.start_all() == [f"{hot.job}.2.0"]
    job, first = Job.objects.get(pk=hot.job), Attempt.objects.get(job_id=hot.job, number=1)
    assert (job.submitted_at, job.retries_used) == (queued_at, 0)
    assert (first.reason, first.evidence["rule"]) == ("preempted", "heat")
    assert move_incidents() == [("moved", f"moved job {hot.job} off GPU 0 of {hot.name} after 11 min of heat (91 °C)")]


def test_job_that_starts_elsewhere_while_moves_are_planned_is_left_alone(hot, moving, monkeypatch):
    cool, movable = make_node(gpus=1), thermal_moves._movable

    def restarted_meanwhile(rows):
        moves = movable(rows)
        hot.end(*hot.held, exit_code=None, reason="node_fault")
        run_cycle()
        assert cool.start_all() == [f"{hot.job}.2.0"]
        return moves

    monkeypatch.setattr(thermal_moves, "_movable", restarted_meanwhile)
    assert thermal_moves.move_off_hot_gpus() == 0
    assert Job.objects.get(pk=hot.job).state == "running"
    assert not move_incidents()


def test_owner_sees_why_the_job_was_moved(hot, moving):
    make_node(gpus=1)
    thermal_moves.move_off_hot_gpus()
    [represented] = representation.select("j.id = %s", [hot.job])
    text = f"preempted for GPU 0 of {hot.name}, which has been hot for 11 min (91 °C)"
    assert represented["reason"]["sentence"] == text


def test_gpu_gets_no_work_until_it_has_cooled(hot, moving, user, tenant):
    """Neither the job that was moved off it nor another."""
    make_node(gpus=1)
    thermal_moves.move_off_hot_gpus()
    end(hot)
    waiting = submit(user, tenant)
    run_cycle()
    assert Job.objects.get(pk=waiting).state == "pending"
    warm(hot, 60)
    Device.objects.filter(health="hot").update(cool_since=F("cool_since") - timedelta(seconds=thermal.COOL_SECONDS))
    warm(hot, 60)
    run_cycle()
    assert Job.objects.get(pk=waiting).state == "scheduled"


@pytest.mark.parametrize(
    "fields",
    [{"preemptible": False}, {"requeue": False}],
)
def test_job_that_cannot_be_preempted_is_not_moved(fields, moving, user, tenant):
    node = make_node(gpus=1)
    submit(user, tenant, **fields)
    run_cycle()
    node.start_all()
    warm(node)
    pass_minutes(60)
    make_node(gpus=1)
    assert thermal_moves.move_off_hot_gpus() == 0


def test_job_without_a_cooler_place_is_not_moved(hot, moving, user, tenant):
    """No eviction for nothing: neither where all is taken, nor where all else is hot, nor where another comes first."""
    assert thermal_moves.move_off_hot_gpus() == 0
    other = make_node(gpus=1)
    warm(other)
    assert thermal_moves.move_off_hot_gpus() == 0
    Device.objects.filter(node_id=other.id).update(health="ok")
    Incident.objects.filter(node_id=other.id).delete()
    first = submit(user, tenant, priority=1500)
    assert thermal_moves.move_off_hot_gpus() == 0
    run_cycle()
    assert Job.objects.get(pk=first).state == "scheduled"


def test_recently_started_job_on_a_hot_gpu_is_not_moved(user, tenant, moving):
    node = make_node(gpus=1)
    warm(node)
    pass_minutes(60)
    submit(user, tenant)
    run_cycle()
    node.start_all()
    make_node(gpus=1)
    assert thermal_moves.move_off_hot_gpus() == 0


def test_nine_minutes_of_heat_are_not_enough(user, tenant, moving):
    node = make_node(gpus=1)
    submit(user, tenant)
    run_cycle()
    node.start_all()
    pass_minutes(60)
    warm(node)
    pass_minutes(9)
    make_node(gpus=1)
    assert thermal_moves.move_off_hot_gpus() == 0


def test_job_is_moved_at_most_three_times_and_later_each_time(moving, user, tenant):
    """A15: a room in which everything is hot must not keep jobs from working."""
    nodes = [make_node(gpus=1), make_node(gpus=1)]
    job = submit(user, tenant)
    run_cycle()
    waited = []
    for _ in range(5):
        at = next(node for node in nodes if node.start_all())
        warm(at)
        for minutes in range(11, 200, 11):
            pass_minutes(11)
            if thermal_moves.move_off_hot_gpus():
                waited.append(minutes)
                break
        else:
            break
        end(at)
        Incident.objects.update(until=F("since"))
        Device.objects.update(health="ok")
        run_cycle()
    assert waited == [11, 22, 44]
    assert Job.objects.get(pk=job).state == "running"


def test_tenant_without_preemption_or_budget_keeps_its_jobs(hot, moving, tenant):
    make_node(gpus=1)
    for row in ({"preemption_budget_per_hour": 0}, {"preemption_budget_per_hour": None, "allow_preemption": False}):
        Tenant.objects.update(**row)
        assert thermal_moves.move_off_hot_gpus() == 0
    Tenant.objects.update(preemption_budget_per_hour=1, allow_preemption=True)
    assert thermal_moves.move_off_hot_gpus() == 1


def test_moves_are_off_when_disabled_or_ineffective(hot):
    make_node(gpus=1)
    policy.change({"thermal_moves": "off"}, actor="root")
    assert thermal_moves.move_off_hot_gpus() == 0
    with pytest.raises(Problem):
        policy.change({"thermal_move_minutes": 5}, actor="root")
    policy.change({"thermal_moves": "move"}, actor="root")
    for switch in ("enable_preemption", "enable_thermal_aware"):
        policy.change({switch: False}, actor="root")
        assert thermal_moves.move_off_hot_gpus() == 0
        with pytest.raises(Problem):
            policy.change({"thermal_moves": "monitor"}, actor="root")
        policy.change({switch: True}, actor="root")
    assert thermal_moves.move_off_hot_gpus() == 1
