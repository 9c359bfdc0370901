"""The order of service: tenants by guarantee, tier and share; jobs by priority and bounded aging."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.model import Job, Policy, Tenant
from scheduling.engine.queue.fairshare import average_gpus, charge
from scheduling.engine.queue.ordering import aged_priority, band
from tests.engine.scenario import NOW, advance, ask, cluster, decide, end_due, job, node, running_on, started


def order(*jobs: Job, tenants: Sequence[Tenant] = (), policy: Policy = Policy()) -> list[int]:
    """Return the ids in the order in which they start on a cluster that holds them all."""
    new_plan = decide(cluster(node(1, gpus=64, cpu=256), jobs=jobs, tenants=tenants), policy)
    return [placement.job_id for placement in new_plan.placements]


def test_inside_a_tenant_by_priority_then_by_queue_time_then_by_id() -> None:
    assert order(job(1, age=5), job(2, age=60), job(4, age=5), job(3, priority=600, age=0)) == [3, 2, 1, 4]


def test_aging_lets_an_old_job_pass_one_of_slightly_higher_priority() -> None:
    """A13: one point per minute."""
    assert order(job(1, priority=500, age=11 * 60), job(2, priority=510, age=0)) == [1, 2]
    assert order(job(1, priority=500, age=9 * 60), job(2, priority=510, age=0)) == [2, 1]


@pytest.mark.parametrize(("low", "high"), [(100, 500), (499, 500), (999, 1000), (1999, 2000)])
def test_no_age_lifts_a_job_into_the_next_band(low: int, high: int) -> None:
    """A13: even after a year."""
    year = 365 * 86400.0
    assert order(job(1, priority=low, age=year), job(2, priority=high, age=0)) == [2, 1]


@settings(deadline=None, derandomize=True, database=None)
@given(st.integers(0, 5000), st.floats(0, 1e9), st.floats(0, 1e9), st.floats(0, 100))
def test_aging_is_bounded_monotone_and_by_time_only(priority: int, early: float, late: float, rate: float) -> None:
    """A13: a function of the waiting time alone, so neither the cycle rate nor a restart can change it."""
    policy = Policy(aging_points_per_minute=rate)
    young, old = sorted((early, late))
    before, after = aged_priority(priority, NOW - young, policy, NOW), aged_priority(priority, NOW - old, policy, NOW)
    assert priority <= before <= after <= priority + 999
    assert band(int(after)) == band(priority)


def test_a_queue_time_in_the_future_takes_no_points_away() -> None:
    assert aged_priority(500, NOW + 600, Policy(), NOW) == 500


def test_tenants_take_turns_by_share() -> None:
    jobs = [job(id, tenant=1 + (id > 3)) for id in (1, 2, 3, 4, 5, 6)]
    assert order(*jobs) == [1, 4, 2, 5, 3, 6]


def test_a_weight_of_three_gets_three_times_as_much() -> None:
    jobs = [job(id, tenant=1 + (id > 10)) for id in (1, 2, 3, 11, 12, 13, 14, 15, 16)]
    tenants = (Tenant(1, "a", weight=1.0), Tenant(2, "b", weight=3.0))
    assert order(*jobs, tenants=tenants)[:8] == [1, 11, 12, 13, 2, 14, 15, 16]


def test_past_use_counts_as_the_gpus_that_would_have_given_it() -> None:
    half_life = Policy().usage_half_life_seconds
    steady = 2 * half_life / 0.6931471805599453
    assert average_gpus(steady, Policy()) == pytest.approx(2)
    tenants = (Tenant(1, "a", usage_gpu_seconds=steady), Tenant(2, "b"))
    assert order(job(1), job(2, tenant=2), job(3, tenant=2), job(4, tenant=2), tenants=tenants) == [2, 3, 1, 4]


def test_tenants_under_their_guarantee_come_first_then_lower_tiers() -> None:
    tenants = (Tenant(1, "a", tier=1), Tenant(2, "b", tier=2, guaranteed_gpus=2), Tenant(3, "c", tier=2))
    jobs = [job(1), job(2), *[job(id, tenant=2) for id in (11, 12, 13)], job(21, tenant=3)]
    assert order(*jobs, tenants=tenants) == [11, 12, 1, 2, 21, 13]


def test_priority_counts_across_tenants_only_under_the_priority_policy() -> None:
    jobs = [job(1), job(2, priority=400), job(11, tenant=2, priority=3000), job(12, tenant=2, priority=3000)]
    assert order(*jobs) == [1, 11, 2, 12]
    assert order(*jobs, policy=Policy(name="priority")) == [11, 12, 1, 2]


def test_a_job_without_gpus_counts_by_its_part_of_the_cpu() -> None:
    assert charge(ask(0, cpu_milli=32_000), 64_000) == 0.5
    assert charge(ask(2, cpu_milli=32_000), 64_000) == 2
    assert charge(ask(0, cpu_milli=1000), 0) > 0


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no policy is named 'lottery'; there are cost_aware, fair, fifo"):
        decide(cluster(), Policy(name="lottery"))


def test_a_job_that_is_not_eligible_yet_waits() -> None:
    later = replace(job(1), eligible_at=NOW + 1)
    assert started(decide(cluster(node(1), jobs=[later]))) == set()
    assert started(decide(cluster(node(1), jobs=[later]), now=NOW + 1)) == {1}


def test_two_backlogs_converge_to_their_weights() -> None:
    """A17: GPU-seconds 1:3 within 5 %, over a hundred jobs of a minute each on four GPUs."""
    tenants = (Tenant(1, "a", weight=1.0), Tenant(2, "b", weight=3.0))
    backlog = [job(id, tenant=1 + id % 2, minutes=1) for id in range(1, 400)]
    state, ran = cluster(node(1, gpus=4), jobs=backlog, tenants=tenants), {1: 0, 2: 0}
    for minute in range(50):
        now = NOW + minute * 60
        state = end_due(state, now)
        state = advance(state, decide(state, now=now), now)
        for running_job in state.running:
            ran[running_job.tenant_id] += 1
    assert ran[2] / ran[1] == pytest.approx(3, rel=0.05)


def test_the_held_job_of_a_running_cluster_counts_for_the_share() -> None:
    state = running_on(cluster(node(1), jobs=[job(1), job(2, tenant=2)]), job(9, gpus=4))
    assert [placement.job_id for placement in decide(state).placements] == [2, 1]
