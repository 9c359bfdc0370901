"""The online and batch parts of the cluster: they add up, batch borrows unused online capacity, online reclaims it."""

from dataclasses import replace
from itertools import permutations

import pytest

from scheduling.engine.explain.feasibility import why_never_fits
from scheduling.engine.limits.online_split import borrowing_gpus, gpus_in_service, in_use, shares, split_of
from scheduling.engine.model import Booking, DeviceHold, Job, Policy, RankPlacement, Tenant
from tests.engine.scenario import NOW, cluster, decide, gpu, job, node, reason, running_on, started

HALF = Policy(online_percent=50)


def test_the_parts_always_add_up_to_the_gpus_in_service() -> None:
    """A05: for 1 to 1000 GPUs, and neither part is off its exact size by a whole GPU."""
    for gpus in range(1, 1001):
        for percent in range(101):
            batch, online = split_of(gpus, Policy(online_percent=percent))
            assert batch + online == gpus
            assert abs(online - gpus * percent / 100) < 1


@pytest.mark.parametrize("total", [0, 1, 2, 7, 100, 999])
def test_shares_by_largest_remainder_add_up_for_any_weights(total: int) -> None:
    for weights in ((1,), (1, 1, 1), (3, 2, 1), (0, 5), (7, 11, 13, 17)):
        result = shares(total, weights)
        assert sum(result) == total
        assert all(
            abs(parts - total * weight / sum(weights)) < 1 for parts, weight in zip(result, weights, strict=True)
        )


def test_shares_refuse_weights_without_a_positive_sum() -> None:
    for weights in ((0, 0), (-1, 2)):
        with pytest.raises(ValueError, match="weights"):
            shares(8, weights)


def test_only_gpus_in_service_are_split() -> None:
    """A05: a closed, silent or unhealthy node takes its GPUs out of both parts."""
    nodes = [
        node(1),
        node(2, is_open=False),
        node(3, is_online=False),
        node(4, gpus=[gpu(1, is_healthy=False), gpu(2)]),
    ]
    assert gpus_in_service(nodes) == 9
    assert split_of(gpus_in_service(nodes), HALF) == (4, 5)


def test_online_jobs_keep_to_their_part() -> None:
    new_plan = decide(cluster(node(1), jobs=[job(id, online=True) for id in range(1, 7)]), HALF)
    assert started(new_plan) == {1, 2, 3, 4}
    assert reason(new_plan, 5).code == "quota_wait"
    assert reason(new_plan, 5).evidence["dimension"] == "GPUs of the cluster's online part"


def test_batch_borrows_unused_online_capacity_below_half_of_its_use() -> None:
    state = running_on(cluster(node(1)), job(90, online=True))
    new_plan = decide(replace(state, jobs=tuple(job(id) for id in range(1, 9))), HALF)
    assert started(new_plan) == set(range(1, 8))


def test_no_capacity_is_lent_from_half_of_the_online_part_on() -> None:
    state = running_on(cluster(node(1)), job(90, gpus=2, online=True))
    new_plan = decide(replace(state, jobs=tuple(job(id) for id in range(1, 9))), HALF)
    assert started(new_plan) == {1, 2, 3, 4}
    assert reason(new_plan, 5).evidence == {
        "tenant": "t1",
        "dimension": "GPUs of the cluster's batch part",
        "requested": 1,
        "limit": 4,
        "in_use": 4,
        "whose": "all tenants together",
    }


def test_batch_leaves_capacity_for_waiting_online_jobs() -> None:
    """The batch jobs come first in order, and take only their part."""
    jobs = [*[job(id, age=999) for id in range(1, 9)], job(50, gpus=2, online=True, age=1)]
    assert started(decide(cluster(node(1), jobs=jobs), HALF)) == {1, 2, 3, 4, 50}


def test_online_reclaims_lent_capacity() -> None:
    """No new batch job starts in place of an ended one, as long as online needs its part."""
    lent = running_on(cluster(node(1)), *[job(id) for id in range(80, 87)])
    assert borrowing_gpus(split_of(8, HALF), in_use(lent.running, online=False)) == 3
    waiting = (job(20, age=5000), job(21, online=True), job(22, online=True))
    assert started(decide(replace(lent, jobs=waiting), HALF)) == {21}
    assert started(decide(replace(lent, jobs=waiting[:1]), HALF)) == {20}


@pytest.mark.parametrize(
    "waiting",
    [job(50, gpus=3, online=True, node_selector=(("no", "where"),)), job(50, gpus=3, online=True, tenant=2)],
    ids=["no node could take it", "its tenant may not have as many"],
)
def test_online_job_that_cannot_start_holds_back_no_capacity(waiting: object) -> None:
    state = cluster(node(1), jobs=[*[job(id) for id in range(1, 9)], waiting], tenants=[Tenant(2, "b", max_gpus=1)])  # type: ignore[list-item]
    assert started(decide(state, HALF)) == set(range(1, 9))


@pytest.mark.parametrize(
    ("tenant", "waiting"),
    [
        (Tenant(2, "b", max_gpus_per_user=2), job(50, gpus=3, online=True, tenant=2)),
        (Tenant(2, "b", max_gpus_by_model=(("A100", 2),)), job(50, gpus=3, online=True, tenant=2)),
        (Tenant(2, "b", max_concurrent_jobs=1), job(50, gpus=3, online=True, tenant=2)),
        (Tenant(2, "b", max_memory_mb=100), job(50, gpus=3, online=True, tenant=2, memory_mb=101)),
        (Tenant(2, "b"), replace(job(50, gpus=3, online=True, tenant=2), booking_id=7)),
    ],
    ids=["GPUs per user", "GPUs of a model", "concurrent jobs", "memory", "its booking is ahead"],
)
def test_online_job_that_a_limit_or_booking_stops_holds_back_no_capacity(tenant: Tenant, waiting: Job) -> None:
    """A05: idle GPUs of the online part are lent, as no job could start on them."""
    state = running_on(cluster(node(1, 9), tenants=[tenant]), job(90, gpus=0, tenant=2))
    rank = RankPlacement(0, 1, 0, 0, (DeviceHold(108),))
    bookings = (Booking(7, 2, NOW + 3600, NOW + 7200, (rank,)),) if waiting.booking_id else ()
    jobs = (*[job(id, minutes=5) for id in range(1, 10)], waiting)
    assert started(decide(replace(state, jobs=jobs, bookings=bookings), HALF)) == set(range(1, 10))


def test_lent_capacity_does_not_depend_on_the_order_of_the_jobs() -> None:
    """A21: one of the two online jobs is within the limit of their tenant, whichever comes first."""
    online = [job(50 + gpus, gpus=gpus, online=True, tenant=2) for gpus in (2, 3)]
    batch = [job(id) for id in range(1, 17)]
    nodes, tenant = [node(1), node(2)], Tenant(2, "b", max_gpus=3)
    plans = {
        repr(decide(cluster(*nodes, jobs=[*batch, *order], tenants=[tenant]), HALF)) for order in permutations(online)
    }
    assert len(plans) == 1


def test_cpu_jobs_are_not_split() -> None:
    state = running_on(cluster(node(1)), *[job(id) for id in range(80, 88)])
    state = replace(state, jobs=(job(1, gpus=0), job(2, gpus=2, online=True)))
    assert started(decide(state, HALF)) == {1}


def test_a_large_batch_job_is_not_starved_by_small_ones_of_other_tenants() -> None:
    """A12, for the parts: the batch part is free in time for the first waiting job, which is not named."""
    gpus_held = job(90, gpus=4, online=True, tenant=2), job(91, gpus=6, minutes=60, tenant=2)
    state = running_on(cluster(node(1, gpus=16), tenants=[Tenant(1, "t1"), Tenant(2, "t2")]), *gpus_held)
    jobs = (job(1, gpus=8), job(2, tenant=2, gpus=2), job(3, tenant=2, gpus=2, minutes=30))
    new_plan = decide(replace(state, jobs=jobs), HALF)
    assert started(new_plan) == {3}
    assert reason(new_plan, 2).evidence["promised_to"] is None


def test_without_a_split_classes_do_not_matter() -> None:
    jobs = [job(id, online=id % 2 == 0) for id in range(1, 9)]
    assert started(decide(cluster(node(1), jobs=jobs), Policy())) == set(range(1, 9))


def test_the_split_follows_the_nodes() -> None:
    """A05: recomputed when nodes come."""
    jobs = [job(id, online=True, age=NOW - id) for id in range(1, 9)]
    assert len(started(decide(cluster(node(1, gpus=4), jobs=jobs), HALF))) == 2
    assert len(started(decide(cluster(node(1, gpus=4), node(2), jobs=jobs), HALF))) == 6


def test_an_online_job_larger_than_the_online_part_of_all_gpus_is_refused() -> None:
    """A04: at submit, with the largest possible; the plan gives the same reason to a waiting one."""
    nodes = [node(1), node(2, is_open=False)]
    large, fitting = job(1, gpus=9, online=True, gang=True), job(2, gpus=8, online=True)
    verdict = why_never_fits(large.request, Tenant(1, "a"), nodes, HALF, is_online=True)
    assert verdict is not None
    assert verdict.evidence["largest"] == "8 GPUs, the cluster's online part"
    new_plan = decide(cluster(*nodes, jobs=[large, fitting]), HALF)
    assert (reason(new_plan, 1).code, reason(new_plan, 1).evidence) == verdict
    assert reason(new_plan, 2).code == "quota_wait"
    assert why_never_fits(large.request, Tenant(1, "a"), nodes, HALF) is None
    assert why_never_fits(fitting.request, Tenant(1, "a"), nodes, HALF, is_online=True) is None
