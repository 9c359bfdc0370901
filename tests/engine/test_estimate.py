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
def test_estimate_is_a_future_range_or_none(snapshot: Snapshot, policy: Policy) -> None:
    """For every waiting job of random states, also where jobs preempt; those that start now start now."""
    result = estimates(snapshot, policy, NOW, [waiting.id for waiting in snapshot.jobs])
    now = started(decide(snapshot, policy))
    for job_id, each in result.items():
        assert (each.p90_at == NOW) == (job_id in now)
        assert each.p90_at is None or (each.p50_at is not None and NOW <= each.p50_at <= each.p90_at)
        assert each.p90_at is None or each.after is None


@settings(max_examples=int(os.environ.get("ENGINE_EXAMPLES", "50")), deadline=None, derandomize=True, database=None,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(states.snapshots(), st.sampled_from([Policy(), Policy(min_runtime_seconds=0.0, preemption_delay_seconds=0.0)]))
def test_estimate_does_not_depend_on_earlier_forecasts(snapshot: Snapshot, policy: Policy) -> None:
    """Forecasts of one snapshot share their plans; each is what it would be alone, in any order of questions."""
    shared = estimate.Forecasts(snapshot, policy, NOW, decide(snapshot, policy))
    for work in (estimate.MAX_WORK, 1):
        for waiting in snapshot.jobs:
            alone = estimates(snapshot, policy, NOW, [waiting.id], typical=0.5, work=work)
            assert shared.estimates([waiting.id], typical=0.5, work=work) == alone


def test_estimate_lies_between_the_typical_and_the_latest_end() -> None:
    result = one(replace(full(60, 120), jobs=(job(1),)))
    assert (result.p50_at, result.p90_at) == (NOW + 1800, NOW + 3600)
    assert (result.jobs_ending, result.jobs_starting, result.unlimited) == (1, 0, 0)


def test_estimate_counts_jobs_ahead() -> None:
    state = replace(full(60, 60), jobs=(job(2, gpus=2, age=9999, minutes=30), job(1)))
    result = one(state)
    assert (result.p50_at, result.p90_at) == (NOW + 1800 + 900, NOW + 3600 + 1800)
    assert (result.jobs_ending, result.jobs_starting) == (3, 1)


def test_estimate_is_unknown_without_time_limits() -> None:
    result = one(replace(full(None, None, 60), jobs=(job(1, gpus=2),)))
    assert (result.p50_at, result.p90_at, result.after, result.unlimited) == (None, None, None, 2)


def test_estimate_of_an_ineligible_job_is_its_eligible_time() -> None:
    state = cluster(node(1), jobs=[replace(job(1), eligible_at=NOW + 60)])
    assert one(state).p90_at == NOW + 60


def test_estimate_of_a_job_that_starts_is_now() -> None:
    assert one(cluster(node(1), jobs=[job(1)])).p90_at == NOW


def test_estimate_waits_for_the_limit_of_the_tenant() -> None:
    state = running_on(cluster(node(1), tenants=[Tenant(1, "t", max_gpus=2)]), job(9, gpus=2, minutes=10))
    assert one(replace(state, jobs=(job(1),))).p90_at == NOW + 600


def test_estimate_counts_preemption() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=8, priority=300), now=NOW - 3600)
    urgent = job(1, gpus=8, priority=2000, age=0)
    result = one(replace(state, jobs=(urgent,)))
    assert result.p90_at is not None
    assert NOW + 60 + 30 <= result.p90_at <= NOW + 95


def test_estimate_has_bounded_cost_and_is_never_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def counted(snapshot: Snapshot, policy: Policy, now: float) -> Plan:
        calls.append(now)
        return plan(snapshot, policy, now)

    monkeypatch.setattr(estimate, "plan", counted)
    monkeypatch.setattr(estimate, "MAX_PLANS", 10)
    state = replace(full(*range(1, 101)), jobs=(job(1, gpus=95),))
    result = forecast(state, Policy(), NOW, [1], part=1.0)
    assert len(calls) <= 10
    assert NOW + 95 * 60 <= result.starts[1] <= NOW + 100 * 60


def test_estimate_names_the_end_of_a_short_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later jobs run on one after the other: ends that cannot be foreseen now."""
    monkeypatch.setattr(estimate, "MAX_PLANS", 8)
    first = [job(id, gpus=1, age=10_000 - id, minutes=10) for id in range(2, 60)]
    result = one(replace(full(10), jobs=(*first, job(1, age=0))))
    assert result.p90_at is None
    assert result.after is not None and NOW < result.after < inf


def test_forecast_is_exact_if_all_jobs_use_their_limits() -> None:
    """Against the scenario's own clockwork: minute by minute."""
    waiting = [job(id, gpus=1 + id % 5, age=1000 - id, minutes=7 + id % 11, tenant=1 + id % 2) for id in range(1, 30)]
    state = replace(running_on(cluster(node(1), node(2), tenants=[Tenant(2, "t2")]), *[job(100 + n, 2, minutes=5 + n) for n in range(8)]),
                    jobs=tuple(waiting))  # fmt: skip
    foreseen = forecast(state, Policy(), NOW, [entry.id for entry in waiting], part=1.0).starts
    at, seen = NOW, dict[int, float]()
    while len(seen) < len(waiting):
        state = end_due(state, at)
        new_plan = decide(state, now=at)
        seen.update(dict.fromkeys(started(new_plan), at))
        state = advance(state, new_plan, at)
        at += 60
    assert foreseen == seen
