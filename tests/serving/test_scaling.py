"""Scaling of replicas: up at once, down when idle, never while busy."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from serving.openai.measurements import Measurements
from serving.replicas.scaling import Decision, Demand, LiveReplica, decide, wanted_replicas

NOTHING = Demand(
    queued_cost=0, running=0, seconds_per_cost=0.1, replicas=(), min_replicas=0, max_replicas=4, idle_seconds=300
)


def live(*idle):
    return [LiveReplica(number, seconds) for number, seconds in enumerate(idle, 1)]


def demand(**fields):
    return replace(NOTHING, **fields)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, 0),
        ({"min_replicas": 2}, 2),
        ({"queued_cost": 1}, 1),
        ({"queued_cost": 1, "seconds_per_cost": None}, 1),
        ({"running": 3}, 1),
        ({"queued_cost": 13.9}, 2),  # 1.39 s of work per second at 70 %
        ({"queued_cost": 15}, 3),
        ({"queued_cost": 1000}, 4),
        ({"queued_cost": 0, "min_replicas": 2, "is_draining": True}, 0),
        ({"queued_cost": 5, "is_removed": True}, 0),
    ],
)
def test_wanted_replicas_follow_the_queued_work(fields, wanted):
    assert wanted_replicas(demand(**fields)) == wanted


def test_replicas_are_started_at_once():
    assert decide(demand(queued_cost=15, replicas=live(None))) == Decision(2, ())


def test_replica_is_stopped_after_its_idle_time():
    assert decide(demand(replicas=live(299))) == Decision(0, ())
    assert decide(demand(replicas=live(300))) == Decision(0, (1,))


def test_busy_or_cold_replica_is_not_stopped():
    assert decide(demand(replicas=live(None, None))) == Decision(0, ())


def test_replica_that_waits_to_start_without_need_is_stopped_before_others():
    def waiting(number, seconds):
        return LiveReplica(number, None, seconds)

    assert decide(demand(replicas=[waiting(1, 299.0)])) == Decision(0, ())
    assert decide(demand(replicas=[waiting(1, 300.0)])) == Decision(0, (1,))
    assert decide(demand(queued_cost=1, replicas=[waiting(1, 900.0)])) == Decision(0, ()), "a request waits for it"
    both = demand(queued_cost=1, replicas=[*live(900.0), waiting(2, 400.0)], are_gpus_needed=True)
    assert decide(both) == Decision(0, (2,))
    assert decide(demand(replicas=[waiting(1, 60.0)], are_gpus_needed=True)) == Decision(0, ()), "it holds none"


def test_minimum_keeps_its_replicas():
    assert decide(demand(replicas=live(500, 900, 700), min_replicas=2)) == Decision(0, (2,))


def test_idle_replica_yields_its_gpus_to_waiting_jobs():
    assert decide(demand(replicas=live(11, None), are_gpus_needed=True)) == Decision(0, (1,))
    assert decide(demand(replicas=live(9), are_gpus_needed=True)) == Decision(0, ())
    assert decide(demand(replicas=live(11), min_replicas=1, are_gpus_needed=True)) == Decision(0, ())


def test_draining_endpoint_keeps_a_replica_for_what_waits():
    draining = demand(replicas=live(1.0), is_draining=True, min_replicas=1)
    assert decide(replace(draining, queued_cost=3)) == Decision(0, ())
    assert decide(draining) == Decision(0, (1,))
    assert decide(replace(draining, replicas=live(None))) == Decision(0, (1,)), "it never became warm"


def test_removed_endpoint_stops_all_its_replicas():
    assert decide(demand(replicas=live(None, 2.0), is_removed=True)) == Decision(0, (1, 2))


def test_replicas_above_a_lowered_maximum_are_drained_idle_ones_first():
    assert decide(demand(queued_cost=99, replicas=live(None, 2, None, 5), max_replicas=2)) == Decision(0, (), (4, 2))
    assert decide(demand(queued_cost=99, replicas=live(None, 2, None), max_replicas=1)) == Decision(0, (), (2, 3))
    assert decide(demand(queued_cost=99, replicas=live(None, None), max_replicas=2)) == Decision(0, ())


def test_failing_replicas_are_started_less_and_less_often():
    failing = demand(queued_cost=1, failures=3)
    assert decide(replace(failing, failed_seconds=7.9)) == Decision(0, ())
    assert decide(replace(failing, failed_seconds=8.0)) == Decision(1, ())
    for failures in (50, 2000):  # an endpoint may have 1000 replicas, which all fail twice
        assert decide(replace(failing, failures=failures, failed_seconds=299)) == Decision(0, ())
        assert decide(replace(failing, failures=failures, failed_seconds=301)) == Decision(1, ())


def test_process_that_forwards_writes_only_the_speeds_that_it_measured_since():
    """Other web processes measure the endpoint as well."""
    measurements = Measurements()
    for endpoint_id in (1, 2):
        forwarded = SimpleNamespace(endpoint_id=endpoint_id, max_batch=4, cost=5.0)
        measurements.ended(10 + endpoint_id, forwarded, seconds=2.0, status=200)
        learned, [(job_id, _)] = measurements.take()
        assert (learned, job_id) == ([(endpoint_id, 0.1)], 10 + endpoint_id)
    assert measurements.take() == ([], [])
