"""A tenant whose hard budget is used up starts nothing more on GPUs; nobody else is the worse for it."""

from dataclasses import replace

import pytest

from gpusched.protocol import reasons
from scheduling.engine.model import Nomination, Policy, Tenant
from scheduling.engine.whatif.counterfactual import obstacles
from scheduling.engine.whatif.estimate import estimates
from tests.engine.scenario import NOW, cluster, decide, job, node, reason, running_on, started

SPENT = Tenant(1, "nlp", budget_gpu_hours=10.0, budget_used_gpu_hours=10.0, budget_period="this month")
OTHER = Tenant(2, "cv")


def test_its_jobs_wait_and_the_others_start() -> None:
    made = decide(
        cluster(node(1), jobs=[job(1, gpus=8, priority=2000), job(2, gpus=8, tenant=2)], tenants=[SPENT, OTHER])
    )
    assert started(made) == {2}
    assert reason(made, 1).code == "budget"


@pytest.mark.parametrize(("used", "starts"), [(9.999, {1}), (10.0, set()), (11.0, set())])
def test_it_is_used_up_from_its_last_hour_on(used: float, starts: set[int]) -> None:
    tenant = replace(SPENT, budget_used_gpu_hours=used)
    assert started(decide(cluster(node(1), jobs=[job(1)], tenants=[tenant]))) == starts


def test_a_budget_of_nothing_is_used_up() -> None:
    tenant = replace(SPENT, budget_gpu_hours=0.0, budget_used_gpu_hours=0.0)
    assert not started(decide(cluster(node(1), jobs=[job(1)], tenants=[tenant])))


def test_jobs_without_gpus_start() -> None:
    assert started(decide(cluster(node(1), jobs=[job(1, gpus=0)], tenants=[SPENT]))) == {1}


def test_what_runs_goes_on_and_may_not_be_preempted_for_it() -> None:
    state = running_on(cluster(node(1), tenants=[SPENT, OTHER]), job(9, gpus=8, priority=100, tenant=2, age=9999))
    made = decide(replace(state, jobs=(job(1, gpus=8, priority=2000, age=9999),)))
    assert not made.preemptions and reason(made, 1).code == "budget"


def test_it_holds_no_reservation_and_no_claim() -> None:
    state = running_on(cluster(node(1), tenants=[SPENT, OTHER]), job(9, gpus=4, tenant=2))
    ranks = state.running[0].ranks
    state = replace(state, jobs=(job(1, gpus=8, age=9999), job(2, gpus=4, tenant=2)))
    made = decide(replace(state, reserved_job_id=1, claims=(Nomination(1, ranks),)))
    assert (made.reservation, made.claims) == (None, ())
    assert started(made) == {2}


def test_a_job_that_may_not_start_yet_waits_for_its_time_first() -> None:
    made = decide(cluster(node(1), jobs=[replace(job(1), eligible_at=NOW + 60)], tenants=[SPENT]))
    assert reason(made, 1).code == "not_before"


def test_no_start_is_promised() -> None:
    state = cluster(node(1), jobs=[job(1)], tenants=[SPENT])
    found = estimates(state, Policy(), NOW, [1])[1]
    assert found.p50_at is found.p90_at is None


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
def test_what_is_used_up_is_not_said_to_be_less_than_the_budget(used: float, limit: float, words: str) -> None:
    """A60"""
    tenant = replace(SPENT, budget_gpu_hours=limit, budget_used_gpu_hours=used)
    found = reason(decide(cluster(node(1), jobs=[job(1)], tenants=[tenant])), 1)
    sentence = reasons.sentence(found.code, found.evidence)
    assert sentence == f"the budget of tenant nlp is used up: {words} in this month"
    [step] = obstacles(cluster(node(1), jobs=[job(1)], tenants=[tenant]), Policy(), NOW, 1)
    assert step.starts
