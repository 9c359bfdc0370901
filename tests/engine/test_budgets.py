"""A tenant with an exhausted hard budget starts no more GPU jobs; other tenants are not affected."""

from dataclasses import replace

import pytest

from gpusched.protocol import reasons
from scheduling.engine.model import Nomination, Policy, Tenant
from scheduling.engine.whatif.counterfactual import obstacles
from scheduling.engine.whatif.estimate import estimates
from tests.engine.scenario import NOW, cluster, decide, job, node, reason, running_on, started

SPENT = Tenant(1, "nlp", budget_gpu_hours=10.0, budget_used_gpu_hours=10.0, budget_period="this month")
OTHER = Tenant(2, "cv")


def test_exhausted_budget_keeps_jobs_waiting_and_others_start() -> None:
    new_plan = decide(
        cluster(node(1), jobs=[job(1, gpus=8, priority=2000), job(2, gpus=8, tenant=2)], tenants=[SPENT, OTHER])
    )
    assert started(new_plan) == {2}
    assert reason(new_plan, 1).code == "budget"


@pytest.mark.parametrize(("used", "starts"), [(9.999, {1}), (10.0, set()), (11.0, set())])
def test_budget_is_exhausted_when_use_reaches_it(used: float, starts: set[int]) -> None:
    tenant = replace(SPENT, budget_used_gpu_hours=used)
    assert started(decide(cluster(node(1), jobs=[job(1)], tenants=[tenant]))) == starts


def test_budget_of_zero_is_exhausted() -> None:
    tenant = replace(SPENT, budget_gpu_hours=0.0, budget_used_gpu_hours=0.0)
    assert not started(decide(cluster(node(1), jobs=[job(1)], tenants=[tenant])))


def test_exhausted_budget_lets_jobs_without_gpus_start() -> None:
    assert started(decide(cluster(node(1), jobs=[job(1, gpus=0)], tenants=[SPENT]))) == {1}


def test_exhausted_budget_stops_and_preempts_no_running_job() -> None:
    state = running_on(cluster(node(1), tenants=[SPENT, OTHER]), job(9, gpus=8, priority=100, tenant=2, age=9999))
    new_plan = decide(replace(state, jobs=(job(1, gpus=8, priority=2000, age=9999),)))
    assert not new_plan.preemptions and reason(new_plan, 1).code == "budget"


def test_exhausted_budget_gives_no_promise_and_no_nomination() -> None:
    state = running_on(cluster(node(1), tenants=[SPENT, OTHER]), job(9, gpus=4, tenant=2))
    ranks = state.running[0].ranks
    state = replace(state, jobs=(job(1, gpus=8, age=9999), job(2, gpus=4, tenant=2)))
    new_plan = decide(replace(state, reserved_job_id=1, claims=(Nomination(1, ranks),)))
    assert (new_plan.reservation, new_plan.claims) == (None, ())
    assert started(new_plan) == {2}


def test_ineligible_job_waits_for_its_time_before_the_budget() -> None:
    new_plan = decide(cluster(node(1), jobs=[replace(job(1), eligible_at=NOW + 60)], tenants=[SPENT]))
    assert reason(new_plan, 1).code == "not_before"


def test_exhausted_budget_gives_no_estimate() -> None:
    state = cluster(node(1), jobs=[job(1)], tenants=[SPENT])
    result = estimates(state, Policy(), NOW, [1])[1]
    assert result.p50_at is result.p90_at is None


@pytest.mark.parametrize(
    ("used", "limit", "words"),
    [
        (0.0137, 0.01, "0.013 of 0.01 GPU-hours"),
        (0.01, 0.01, "0.01 of 0.01 GPU-hours"),
        (12.7, 10.0, "12 of 10 GPU-hours"),
        (1.7, 1.5, "1.7 of 1.5 GPU-hours"),
        (10.0, 10.0, "10 of 10 GPU-hours"),
        (0.0, 0.0, "0 of 0 GPU-hours"),
    ],
)
def test_reason_shows_at_least_the_budget_as_used(used: float, limit: float, words: str) -> None:
    """A60"""
    tenant = replace(SPENT, budget_gpu_hours=limit, budget_used_gpu_hours=used)
    result = reason(decide(cluster(node(1), jobs=[job(1)], tenants=[tenant])), 1)
    sentence = reasons.sentence(result.code, result.evidence)
    assert sentence == f"the budget of tenant nlp is used up: {words} in this month"
    [step] = obstacles(cluster(node(1), jobs=[job(1)], tenants=[tenant]), Policy(), NOW, 1)
    assert step.starts
