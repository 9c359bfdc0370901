"""The differences between the policies: cost, predicted service, arrival; and which job may be promised a place."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.engine.model import Job, Policy, Snapshot, Tenant
from scheduling.engine.policies import LIVE_POLICIES, POLICIES, policy_rules
from scheduling.engine.promise.promise_policy import backlog
from scheduling.engine.queue.job_cost import window_cost
from scheduling.engine.queue.ordering import by_cost, by_service, service_seconds
from tests.engine.scenario import NOW, ask, cluster, decide, job, node, running_on, started

DAY, HOUR = 86400.0, 3600.0
COST, SHORTEST = Policy(name="cost_aware"), Policy(name="shortest")


def order(policy: Policy, *jobs: Job, tenants: Sequence[Tenant] = ()) -> list[int]:
    new_plan = decide(cluster(node(1, gpus=256, cpu=512), jobs=jobs, tenants=tenants), policy)
    return [placement.job_id for placement in new_plan.placements]


def predicted(id: int, gpus: int, minutes: float, **more: object) -> Job:
    return replace(job(id, gpus=gpus, **more), predicted_seconds=minutes * 60)  # type: ignore[arg-type]


def test_references_are_not_for_live_clusters() -> None:
    assert LIVE_POLICIES == ("fair", "priority", "cost_aware", "shortest")
    assert {*POLICIES} - {*LIVE_POLICIES} == {"fifo", "overtaking", "srtf"}
    with pytest.raises(ValueError, match="no policy is named 'random'; there are cost_aware, fair, fifo, overtaking"):
        policy_rules("random")


def test_shortest_goes_by_predicted_time_times_gpus() -> None:
    assert order(SHORTEST, predicted(1, 8, 60), predicted(2, 1, 470), predicted(3, 2, 60)) == [3, 2, 1]


def test_a_prediction_goes_before_the_limit_and_what_is_unknown_comes_last() -> None:
    limited = replace(job(2, minutes=600), predicted_seconds=60.0)
    assert service_seconds(limited) == 60.0
    assert order(SHORTEST, job(1), job(3, minutes=30), limited, job(4, minutes=20)) == [2, 4, 3, 1]


def test_shortest_serves_identical_requests_by_their_own_times() -> None:
    """The jobs share a group, which must be sorted by their times, not by arrival."""
    assert order(SHORTEST, *[predicted(id, 1, 100 - id) for id in range(1, 20)]) == list(range(19, 0, -1))


def test_in_shortest_bands_come_first_and_age_and_priority_help_within_bounds() -> None:
    """A13: age counts at most for 999 / 500, so a job with twice as much work still comes later."""
    assert order(SHORTEST, predicted(1, 1, 1), predicted(2, 8, 9000, priority=1000)) == [2, 1]
    old, new = {"age": 9 * DAY}, {"age": 0.0}
    assert order(SHORTEST, predicted(1, 1, 100, **new), predicted(2, 1, 190, **old)) == [2, 1]
    assert order(SHORTEST, predicted(1, 1, 100, **new), predicted(2, 1, 210, **old)) == [1, 2]
    assert order(SHORTEST, predicted(1, 1, 100), predicted(2, 1, 150, priority=900)) == [2, 1]


def test_shortest_respects_guarantees_and_orders_across_tenants() -> None:
    jobs = [predicted(1, 1, 5), predicted(2, 1, 9), predicted(11, 1, 7, tenant=2), predicted(12, 1, 90, tenant=2)]
    assert order(SHORTEST, *jobs) == [1, 11, 2, 12]
    tenants = (Tenant(1, "a"), Tenant(2, "b", guaranteed_gpus=2))
    assert order(SHORTEST, *jobs, tenants=tenants) == [11, 12, 1, 2]


def test_cost_counts_type_and_size_over_the_window() -> None:
    """GPUs x cost of a GPU-hour x hours of the window."""
    policy = replace(COST, window_seconds=1800.0, cost_by_model=(("A100", 3.0), ("NVIDIA T4", 0.5)))
    assert window_cost(ask(4), policy) == 2.0
    assert window_cost(ask(4, gpu_models=("A100",)), policy) == 6.0
    assert window_cost(ask(4, gpu_models=("NVIDIA A100-SXM4-80GB",)), policy) == 6.0
    assert window_cost(ask(4, gpu_models=("A100", "T4")), policy) == 1.0
    assert window_cost(ask(4, gpu_models=("H100",)), policy) == 2.0
    assert window_cost(ask(0), policy) > 0


def test_cost_aware_serves_the_largest_weight_over_recent_cost_plus_cost() -> None:
    tenants = (Tenant(1, "a", weight=1.0, window_cost=0.5), Tenant(2, "b", weight=3.0, window_cost=1.0))
    # 1 / (0.5 + 1) against 3 / (1 + 6 / 12), 3 / (1 + 12 / 12), …: a GPU costs 1/12 in the window of five minutes.
    jobs = [job(1, gpus=12), job(11, gpus=6, tenant=2), job(12, gpus=6, tenant=2), job(13, gpus=36, tenant=2)]
    assert order(COST, *jobs, tenants=tenants) == [11, 12, 1, 13]
    assert order(COST, *jobs, tenants=(replace(tenants[0], window_cost=1.0), tenants[1])) == [11, 12, 13, 1]


def test_cost_aware_serves_the_cheaper_job_of_a_tenant_first_unless_it_is_of_a_lower_band() -> None:
    assert order(COST, job(1, gpus=8), job(2, gpus=1), job(3, gpus=16, priority=1000)) == [3, 2, 1]


def test_fifo_lets_no_job_pass_a_blocked_one() -> None:
    state = running_on(cluster(node(1), tenants=(Tenant(2, "b"),)), job(99, gpus=4))
    jobs = (job(1, gpus=8), job(2, gpus=1, tenant=2, priority=3000), job(3, gpus=2))
    assert started(decide(replace(state, jobs=jobs), Policy(name="fifo"))) == set()
    assert started(decide(replace(state, jobs=jobs[1:]), Policy(name="fifo"))) == {2, 3}


@settings(deadline=None, derandomize=True, database=None)
@given(
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.floats(1, 1e8),
    st.floats(1, 1e8),
    st.floats(0, 1e9),
    st.floats(0, 1e9),
)
def test_no_age_lifts_a_job_over_a_higher_band(
    one: int, other: int, seconds: float, more: float, age: float, older: float
) -> None:
    """A13, in the policies that divide by the aged priority."""
    first = replace(job(1, priority=one, age=age), predicted_seconds=seconds)
    second = replace(job(2, priority=other, age=older), predicted_seconds=more)
    for key in (by_service, by_cost):
        low, high = sorted((first, second), key=lambda each: each.priority)
        keys = key(high, SHORTEST, NOW), key(low, SHORTEST, NOW)
        assert keys[0][0] <= keys[1][0]


def half_full(*jobs: Job) -> Snapshot:
    """Return two nodes of eight GPUs, five of each held for three hours: the backlog of the running jobs is 30
    GPU-hours."""
    state = running_on(cluster(node(1), node(2)), job(90, gpus=5), job(91, gpus=5))
    running = tuple(replace(running_job, started_at=NOW - 3 * HOUR) for running_job in state.running)
    return replace(state, jobs=jobs, running=running)


OLD, OLDER = job(1, gpus=8, age=15 * HOUR), job(2, gpus=8, age=16 * HOUR)
MANY = [predicted(id, 1, 25, age=60.0) for id in range(11, 30)]


def test_backlog_is_the_work_in_the_cluster_over_its_capacity() -> None:
    """A12: a waiting job counts with the mean age of the running jobs, at most with its limit; A70: whatever is
    predicted."""
    assert backlog(half_full(), NOW).seconds == pytest.approx(30 / 16 * HOUR)
    for waiting in (predicted(1, 8, 60), predicted(2, 8, 90 * 60), job(3, gpus=8)):
        assert backlog(half_full(waiting), NOW).seconds == pytest.approx((30 + 8 * 3) / 16 * HOUR)
    limited = replace(job(1, gpus=8), max_runtime_seconds=3600)
    assert backlog(half_full(limited), NOW).seconds == pytest.approx((30 + 8 * 1) / 16 * HOUR)
    impossible = job(4, gpus=64)
    assert backlog(half_full(impossible), NOW).seconds == pytest.approx((30 + 16 * 3) / 16 * HOUR)
    later = replace(limited, eligible_at=NOW + HOUR)
    assert backlog(half_full(later), NOW).seconds == pytest.approx(30 / 16 * HOUR)
    array = replace(half_full(limited), behind=((1, 9),))
    assert backlog(array, NOW).seconds == pytest.approx((30 + 10 * 8 * 1) / 16 * HOUR)


def test_backlog_of_an_idle_cluster_lets_no_job_starve() -> None:
    assert backlog(cluster(node(1), jobs=[OLD]), NOW).seconds == inf


def test_backlog_adds_the_drain_of_a_place_for_jobs_of_several_gpus() -> None:
    result = backlog(half_full(), NOW)
    assert result.wait_seconds(job(1, gpus=2)) - result.wait_seconds(job(2, gpus=1)) == pytest.approx(3 * HOUR)


@pytest.mark.parametrize(("hours", "is_promised"), [(9, False), (10, True)])
def test_shortest_promises_a_place_only_to_a_job_that_starves(hours: float, is_promised: bool) -> None:
    """A12: the backlog with this job is (30 + 24 + 57) / 16 hours, and the drain takes 3 more."""
    new_plan = decide(half_full(job(1, gpus=8, age=hours * HOUR), *MANY), SHORTEST)
    assert (new_plan.reservation is not None) is is_promised
    assert len(new_plan.placements) == (3 if is_promised else 6)


def test_starving_begins_later_while_more_work_waits() -> None:
    """A12: under overload all jobs are old, and the order does not become that of arrival."""
    job_of_nine_hours = job(1, gpus=8, age=9 * HOUR)
    crowd = [job(id, gpus=8, age=60.0) for id in range(2, 5)]
    assert decide(half_full(job_of_nine_hours), SHORTEST).reservation is not None
    assert decide(half_full(job_of_nine_hours, *crowd), SHORTEST).reservation is None


def test_the_oldest_starving_job_is_promised_a_place_before_the_order() -> None:
    """A12: small jobs still start where they do not delay it."""
    new_plan = decide(half_full(OLD, OLDER, *MANY), SHORTEST)
    assert new_plan.reservation is not None and new_plan.reservation.job_id == 2
    assert len(new_plan.placements) == 3


def test_promised_starving_job_keeps_its_place_when_another_is_older() -> None:
    new_plan = decide(replace(half_full(OLD, OLDER, *MANY), reserved_job_id=1), SHORTEST)
    assert new_plan.reservation is not None and new_plan.reservation.job_id == 1


@pytest.mark.parametrize("minutes", [1, 25, 600, 100_000])
def test_promised_job_keeps_its_place_when_other_jobs_arrive(minutes: float) -> None:
    """A12, A70: they raise the backlog, and with it the time after which a job starves."""
    others = [predicted(id, 8, minutes, age=60.0) for id in range(3, 6)]
    first = decide(half_full(job(1, gpus=8, age=9 * HOUR), predicted(2, 8, 1)), SHORTEST).reservation
    assert first is not None and first.job_id == 1
    state = replace(half_full(job(1, gpus=8, age=9 * HOUR), *others), reserved_job_id=1)
    second = decide(state, SHORTEST).reservation
    assert second is not None and (second.job_id, second.at) == (1, first.at)


@pytest.mark.parametrize("minutes", [1, 25, 600, 100_000])
def test_predictions_of_other_jobs_move_no_promise(minutes: float) -> None:
    """A70"""
    others = [predicted(id, 8, minutes, age=60.0) for id in range(3, 6)]
    for hours, is_promised in ((10, False), (11, True)):
        new_plan = decide(half_full(job(1, gpus=8, age=hours * HOUR), *others), SHORTEST)
        assert (new_plan.reservation is not None) is is_promised


def test_a_starving_job_of_a_higher_band_takes_its_place() -> None:
    for tenant in (1, 2):
        urgent = job(3, gpus=8, age=14.9 * HOUR, priority=1000, tenant=tenant)
        state = replace(half_full(OLD, OLDER, urgent), reserved_job_id=1, tenants=(Tenant(1, "a"), Tenant(2, "b")))
        new_plan = decide(state, replace(SHORTEST, preemption=False))
        assert new_plan.reservation is not None and new_plan.reservation.job_id == 3


def test_ineligible_time_does_not_count_as_starving() -> None:
    """Starving begins at the eligible time."""
    later = replace(OLD, eligible_at=NOW - HOUR)
    assert decide(half_full(later, *MANY), SHORTEST).reservation is None


def test_a_starving_job_that_cannot_be_promised_a_place_leaves_it_to_the_next() -> None:
    new_plan = decide(half_full(replace(OLDER, request=ask(64)), OLD, *MANY), SHORTEST)
    assert new_plan.reservation is not None and new_plan.reservation.job_id == 1


def test_age_alone_lets_no_starving_job_go_before_a_higher_band() -> None:
    """A13."""
    high = [predicted(id, 1, 25, age=60.0, priority=1500) for id in range(11, 30)]
    assert len(decide(half_full(OLD, *high), SHORTEST).placements) == 6


def test_cost_aware_counts_a_job_that_ends_within_the_window_by_its_run_time() -> None:
    policy = replace(COST, window_seconds=600.0)
    jobs = (predicted(1, 2, 60, age=60.0), predicted(2, 4, 1, age=60.0), job(3, 3, age=60.0))
    assert order(policy, *jobs) == [2, 1, 3]
