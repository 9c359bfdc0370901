"""When a waiting job starts: the same engine run forward, bounded in what it costs, honest where it cannot know."""

import os
from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.engine.model import Plan, Policy, Snapshot, Tenant
from scheduling.engine.planner import plan
from scheduling.engine.whatif import estimate
from scheduling.engine.whatif.estimate import estimates, forecast
from tests.engine import states
from tests.engine.scenario import NOW, advance, cluster, decide, end_due, job, node, running_on, started


def full(*minutes: float | None) -> Snapshot:
    """One node of 8 GPUs, each held for so many minutes."""
    holders = [job(100 + n, minutes=limit) for n, limit in enumerate(minutes)]
    return running_on(cluster(node(1, gpus=len(minutes), cpu=1000)), *holders)


def one(state: Snapshot, job_id: int = 1, typical: float = 0.5) -> estimate.Estimate:
    return estimates(state, Policy(), NOW, [job_id], typical=typical)[job_id]


@settings(max_examples=int(os.environ.get("ENGINE_EXAMPLES", "50")), deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(states.snapshots(), st.sampled_from([Policy(), Policy(min_runtime_seconds=0.0, preemption_delay_seconds=0.0)]))
def test_an_estimate_is_a_range_ahead_or_none(snapshot: Snapshot, policy: Policy) -> None:
    """For every waiting job of random states, also where jobs preempt; those that start now start now."""
    found = estimates(snapshot, policy, NOW, [waiting.id for waiting in snapshot.jobs])
    now = started(decide(snapshot, policy))
    for job_id, each in found.items():
        assert (each.p90_at == NOW) == (job_id in now)
        assert each.p90_at is None or (each.p50_at is not None and NOW <= each.p50_at <= each.p90_at)
        assert each.p90_at is None or each.after is None


@settings(max_examples=int(os.environ.get("ENGINE_EXAMPLES", "50")), deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(states.snapshots(), st.sampled_from([Policy(), Policy(min_runtime_seconds=0.0, preemption_delay_seconds=0.0)]))
def test_what_was_foreseen_for_others_changes_nothing(snapshot: Snapshot, policy: Policy) -> None:
    """Forecasts of one snapshot share their plans; each is what it would be alone, in whatever order they are asked."""
    shared = estimate.Forecasts(snapshot, policy, NOW, decide(snapshot, policy))
    for work in (estimate.MAX_WORK, 1):
        for waiting in snapshot.jobs:
            alone = estimates(snapshot, policy, NOW, [waiting.id], typical=0.5, work=work)
            assert shared.estimates([waiting.id], typical=0.5, work=work) == alone


def test_it_starts_between_the_typical_and_the_latest_end() -> None:
    found = one(replace(full(60, 120), jobs=(job(1),)))
    assert (found.p50_at, found.p90_at) == (NOW + 1800, NOW + 3600)
    assert (found.jobs_ending, found.jobs_starting, found.unlimited) == (1, 0, 0)


def test_it_waits_for_those_before_it_as_well() -> None:
    state = replace(full(60, 60), jobs=(job(2, gpus=2, age=9999, minutes=30), job(1)))
    found = one(state)
    assert (found.p50_at, found.p90_at) == (NOW + 1800 + 900, NOW + 3600 + 1800)
    assert (found.jobs_ending, found.jobs_starting) == (3, 1)


def test_without_time_limits_there_is_no_estimate() -> None:
    found = one(replace(full(None, None, 60), jobs=(job(1, gpus=2),)))
    assert (found.p50_at, found.p90_at, found.after, found.unlimited) == (None, None, None, 2)


def test_a_job_that_is_not_eligible_yet_starts_then() -> None:
    state = cluster(node(1), jobs=[replace(job(1), eligible_at=NOW + 60)])
    assert one(state).p90_at == NOW + 60


def test_one_that_starts_now_starts_now() -> None:
    assert one(cluster(node(1), jobs=[job(1)])).p90_at == NOW


def test_it_waits_for_its_own_tenants_limit() -> None:
    state = running_on(cluster(node(1), tenants=[Tenant(1, "t", max_gpus=2)]), job(9, gpus=2, minutes=10))
    assert one(replace(state, jobs=(job(1),))).p90_at == NOW + 600


def test_it_preempts_as_soon_as_it_may() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=8, priority=300), now=NOW - 3600)
    urgent = job(1, gpus=8, priority=2000, age=0)
    found = one(replace(state, jobs=(urgent,)))
    assert found.p90_at is not None
    assert NOW + 60 + 30 <= found.p90_at <= NOW + 95


def test_what_it_costs_is_bounded_and_it_never_says_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def counted(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        calls.append(now)
        return plan(snapshot, policy, now)

    monkeypatch.setattr(estimate, "plan", counted)
    monkeypatch.setattr(estimate, "MAX_PLANS", 10)
    state = replace(full(*range(1, 101)), jobs=(job(1, gpus=95),))
    found = forecast(state, Policy(), NOW, [1], part=1.0)
    assert len(calls) <= 10
    assert NOW + 95 * 60 <= found.starts[1] <= NOW + 100 * 60


def test_a_horizon_that_was_not_far_enough_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later jobs run on one after the other: ends that nobody can see now."""
    monkeypatch.setattr(estimate, "MAX_PLANS", 8)
    first = [job(id, gpus=1, age=10_000 - id, minutes=10) for id in range(2, 60)]
    found = one(replace(full(10), jobs=(*first, job(1, age=0))))
    assert found.p90_at is None
    assert found.after is not None and NOW < found.after < inf


def test_the_forecast_is_what_comes_if_everything_takes_its_limit() -> None:
    """Against the scenario's own clockwork: minute by minute."""
    waiting = [job(id, gpus=1 + id % 5, age=1000 - id, minutes=7 + id % 11, tenant=1 + id % 2) for id in range(1, 30)]
    state = replace(running_on(cluster(node(1), node(2), tenants=[Tenant(2, "t2")]), *[job(100 + n, 2, minutes=5 + n) for n in range(8)]),
                    jobs=tuple(waiting))  # fmt: skip
    foreseen = forecast(state, Policy(), NOW, [one.id for one in waiting], part=1.0).starts
    at, seen = NOW, dict[int, float]()
    while len(seen) < len(waiting):
        state = end_due(state, at)
        made = decide(state, now=at)
        seen.update(dict.fromkeys(started(made), at))
        state = advance(state, made, at)
        at += 60
    assert foreseen == seen
