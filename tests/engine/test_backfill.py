"""The one promise: which job holds it, until when, and which jobs may pass it."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest

from scheduling.engine.model import Job, Policy, Snapshot, Tenant
from tests.engine.scenario import NOW, advance, cluster, decide, end_due, job, node, reason, running_on, started


def busy(*, minutes: float = 60, jobs: tuple[Job, ...] = (), nodes: int = 1) -> Snapshot:
    """Hold four of the eight GPUs of the first node for so many minutes."""
    state = running_on(cluster(*[node(id) for id in range(1, nodes + 1)]), job(99, gpus=4, minutes=minutes))
    return replace(state, jobs=jobs)


def test_first_blocked_job_is_promised_the_earliest_time_it_fits() -> None:
    new_plan = decide(busy(jobs=(job(1, gpus=8), job(2, gpus=8))))
    assert new_plan.reservation is not None
    assert (new_plan.reservation.job_id, new_plan.reservation.at, new_plan.reservation.node_ids) == (
        1,
        NOW + 3600,
        (1,),
    )
    assert reason(new_plan, 1).code == "capacity"


def test_small_jobs_pass_if_they_end_before_the_promised_time() -> None:
    """A12, first half."""
    new_plan = decide(
        busy(jobs=(job(1, gpus=8), job(2, gpus=2, minutes=60), job(3, gpus=1, minutes=61), job(4, gpus=1)))
    )
    assert started(new_plan) == {2}
    reasons_by_tenant = reason(new_plan, 3)
    assert reasons_by_tenant.code == "reserved"
    assert reasons_by_tenant.evidence == {"free": 2, "for_job": 1, "holder": "job 1", "at": "1970-01-12T14:46:40Z"}


def test_promised_job_is_named_only_to_its_tenant() -> None:
    """A08: submitters of a waiting job read its reason, and must not learn of another tenant's jobs."""
    state = cluster(node(1), jobs=[job(1, gpus=8, tenant=2, priority=1000), job(3, minutes=61)])
    new_plan = decide(running_on(state, job(90, gpus=6, minutes=60)))
    assert reason(new_plan, 3).evidence == {
        "free": 2,
        "holder": "a job of another tenant",
        "at": "1970-01-12T14:46:40Z",
    }


def test_jobs_of_any_length_pass_beside_the_promised_devices() -> None:
    """A12, first half: the promised job takes six of eight; two are spare for ever."""
    new_plan = decide(busy(jobs=(job(1, gpus=6), job(2, gpus=3), job(3, gpus=2), job(4, gpus=1))))
    assert started(new_plan) == {3}


def test_jobs_pass_on_other_nodes() -> None:
    state = running_on(cluster(node(1), node(2)), job(98, gpus=6, minutes=30), job(99, gpus=4, minutes=60))
    new_plan = decide(replace(state, jobs=(job(1, gpus=8), job(2, gpus=4), job(3, gpus=2))))
    assert new_plan.reservation is not None and new_plan.reservation.node_ids == (1,)
    assert started(new_plan) == {2}


def test_short_jobs_pass_where_long_jobs_of_the_same_request_wait() -> None:
    jobs = [job(id, minutes=30 if id % 2 else None) for id in range(2, 10)]
    assert started(decide(busy(jobs=(job(1, gpus=8), *jobs)))) == {3, 5, 7, 9}


def small_stream(minute: int, tenant: int) -> tuple[Job, ...]:
    return tuple(
        job(1000 + 10 * minute + n, tenant=tenant, priority=900, age=-60.0 * minute, minutes=3 + n) for n in range(8)
    )


@pytest.mark.parametrize("policy", ["fair", "priority"])
def test_a_stream_of_small_jobs_cannot_starve_a_large_one(policy: str) -> None:
    """A12, second half: eight new small jobs each minute; the large one starts by the time promised at first."""
    large = job(1, gpus=8, age=0, priority=999)
    state, promised = busy(minutes=10, jobs=(large,)), inf
    for minute in range(60):
        now = NOW + 60 * minute
        state = end_due(state, now)
        state = replace(state, jobs=(*state.jobs, *small_stream(minute, tenant=1)))
        new_plan = decide(state, Policy(name=policy), now)
        if large.id in started(new_plan):
            break
        assert new_plan.reservation is not None and new_plan.reservation.job_id == large.id
        assert new_plan.reservation.at <= promised
        promised = new_plan.reservation.at
        state = advance(state, new_plan, now)
    assert now <= promised
    assert minute == 10


def test_promise_stays_with_its_job_when_shares_change() -> None:
    """A12: two tenants with a large and many small jobs each; both large ones start, one after the other."""
    state = cluster(node(1), jobs=[job(1, gpus=8, age=5), job(2, gpus=8, tenant=2, age=4)])
    state = replace(running_on(state, job(90, gpus=3, minutes=9), job(91, gpus=3, tenant=2, minutes=7)))
    waiting, holders = {1, 2}, list[int]()
    starts: dict[int, int] = {}
    for minute in range(60):
        now = NOW + 60 * minute
        state = end_due(state, now)
        new_state = tuple(
            replace(entry, id=entry.id * 2 + t, tenant_id=t) for t in (1, 2) for entry in small_stream(minute, t)
        )
        state = replace(state, jobs=(*state.jobs, *[replace(entry, priority=500) for entry in new_state]))
        state = replace(state, jobs=tuple(with_limit(waiting_job) for waiting_job in state.jobs))
        new_plan = decide(state, now=now)
        starts |= {id: minute for id in started(new_plan) & waiting}
        holders += [new_plan.reservation.job_id] if new_plan.reservation else []
        state = advance(state, new_plan, now)
        if len(starts) == 2:
            break
    assert sorted(starts) == [1, 2] and minute <= 30
    assert sum(a != b for a, b in pairwise(holders)) <= 2


def with_limit(one: Job) -> Job:
    return one if one.max_runtime_seconds else replace(one, max_runtime_seconds=600)


def test_promised_job_keeps_its_turn_when_shares_change() -> None:
    """Tenant 2 uses less, so its job comes first in order; but the promise of the last cycle stands."""
    tenants = [Tenant(1, "a", usage_gpu_seconds=1e6), Tenant(2, "b")]
    state = cluster(node(1), jobs=[job(1, gpus=8), job(2, gpus=8, tenant=2)], tenants=tenants)
    state = running_on(state, job(99, tenant=1, minutes=60))
    new_state, placed_ids = decide(state).reservation, decide(replace(state, reserved_job_id=1)).reservation
    assert new_state is not None and new_state.job_id == 2
    assert placed_ids is not None and placed_ids.job_id == 1


def test_promised_job_gives_way_to_a_higher_band_of_its_tenant() -> None:
    """A13: an urgent job does not wait behind a promise to a less urgent one."""
    state = replace(busy(jobs=(job(1, gpus=8), job(2, gpus=8, priority=2000))), reserved_job_id=1)
    new_plan = decide(state).reservation
    assert new_plan is not None and new_plan.job_id == 2


def test_promised_job_gives_way_to_tenants_under_their_guarantee() -> None:
    state = replace(busy(jobs=(job(1, gpus=8), job(2, gpus=4, tenant=2))), reserved_job_id=1)
    state = replace(state, tenants=(Tenant(1, "a"), Tenant(2, "b")))
    assert started(decide(state)) == set()
    state = replace(state, tenants=(Tenant(1, "a"), Tenant(2, "b", guaranteed_gpus=4)))
    assert started(decide(state)) == {2}


def test_promised_job_keeps_its_place_while_its_tenant_is_at_the_limit() -> None:
    """The tenant's short jobs passed it and use the limit for now; other jobs must not take its place meanwhile."""
    tenants = [Tenant(1, "a", max_gpus=8)]
    state = cluster(node(1), jobs=[job(1, gpus=8), job(2, tenant=2)], tenants=tenants, reserved=1)
    state = running_on(state, job(99, gpus=4, minutes=60))
    new_plan = decide(state)
    assert reason(new_plan, 1).code == "quota_wait"
    assert new_plan.reservation is not None and (new_plan.reservation.job_id, new_plan.reservation.at) == (
        1,
        NOW + 3600,
    )
    assert reason(new_plan, 2).code == "reserved"


def test_promised_job_waits_for_its_limit_if_that_takes_longer_than_its_devices() -> None:
    tenants = [Tenant(1, "a", max_gpus=8), Tenant(2, "b")]
    state = cluster(node(1), node(2, gpus=2), jobs=[job(1, gpus=8)], tenants=tenants, reserved=1)
    state = running_on(state, job(98, gpus=4, tenant=2, minutes=60), job(99, gpus=2, minutes=90))
    new_plan = decide(state).reservation
    assert new_plan is not None and (new_plan.at, new_plan.node_ids) == (NOW + 5400, (1,))


def test_cpu_and_memory_of_the_promised_node_are_allocated_once() -> None:
    """The head needs 40 of 64 cores: 24 remain free for ever, so one more job of 16 passes and not two."""
    state = running_on(cluster(node(1, gpus=0)), job(99, gpus=0, cpu_milli=30_000, minutes=60))
    head = job(1, gpus=0, cpu_milli=40_000)
    new_plan = decide(replace(state, jobs=(head, *[job(id, gpus=0, cpu_milli=16_000) for id in (2, 3)])))
    assert started(new_plan) == {2}


def test_promise_protects_the_limit_of_its_tenant() -> None:
    """The head of tenant 1 waits for a node; its own long job elsewhere must not use up the limit it needs."""
    tenants = [Tenant(1, "a", max_gpus=8), Tenant(2, "b")]
    state = running_on(cluster(node(1), node(2, gpus=4), tenants=tenants), job(99, gpus=8, tenant=2, minutes=60))
    new_plan = decide(replace(state, jobs=(job(1, gpus=8), job(2, gpus=2), job(3, gpus=2, minutes=50))))
    assert started(new_plan) == {3}
    assert reason(new_plan, 2).evidence["promised_to"] == 1


def test_job_that_cannot_start_anyway_gets_no_promise() -> None:
    closed = replace(node(2, gpus=16), is_open=False)
    limited = Tenant(2, "b", max_gpus=2)
    state = running_on(cluster(node(1), closed, tenants=[limited]), job(97, gpus=4), job(98, tenant=2, gpus=2))
    jobs = (job(1, gpus=16), job(2, gpus=99), job(3, gpu_models=("H100",)), job(4, gpus=1, tenant=2), job(5, gpus=8))
    new_plan = decide(replace(state, jobs=jobs))
    assert [reason(new_plan, id).code for id in range(1, 5)] == [
        "maintenance",
        "never_fits",
        "constraint",
        "quota_wait",
    ]
    assert new_plan.reservation is not None and new_plan.reservation.job_id == 5


def test_job_without_time_limit_counts_with_the_bound_of_the_policy() -> None:
    state = replace(busy(minutes=60), jobs=(job(1, gpus=8),))
    state = replace(state, running=tuple(replace(running_job, ends_by=None) for running_job in state.running))
    new_plan = decide(state, Policy(unlimited_runtime_seconds=7200)).reservation
    assert new_plan is not None and new_plan.at == NOW + 7200
    overdue = decide(state, Policy(unlimited_runtime_seconds=7200), NOW + 9000).reservation
    assert overdue is not None and overdue.at == NOW + 9000


def test_a_gang_is_promised_the_time_its_last_node_is_free() -> None:
    state = running_on(cluster(node(1), node(2)), job(98, gpus=8, minutes=30), job(99, gpus=8, minutes=60))
    new_plan = decide(replace(state, jobs=(job(1, gpus=16, gang=True),))).reservation
    assert new_plan is not None and (new_plan.at, new_plan.node_ids) == (NOW + 3600, (1, 2))


def test_shared_memory_is_promised_too() -> None:
    state = cluster(node(1, gpus=1))
    state = running_on(state, job(99, shared=True, gpu_memory_mb=30_000, minutes=60))
    head = job(1, shared=True, gpu_memory_mb=60_000)
    beside, over = job(2, shared=True, gpu_memory_mb=8_000), job(3, shared=True, gpu_memory_mb=9_000)
    new_plan = decide(replace(state, jobs=(head, over, beside)))
    assert started(new_plan) == {2}


def test_a_stream_of_a_higher_tier_does_not_move_the_promise() -> None:
    """A12: the large job of the lower tier starts when the jobs that ran at its promise have ended."""
    tiers = (Tenant(1, "standard", tier=1), Tenant(2, "premium", tier=0))
    state = cluster(node(1, 2), tenants=tiers, jobs=[job(1, 2, minutes=60)])
    state = running_on(state, job(50, 1, tenant=2, minutes=10))
    now = NOW
    for cycle in range(4):
        state = replace(state, jobs=(*state.jobs, job(100 + cycle, 1, tenant=2, minutes=10)))
        new_plan = decide(state, now=now)
        if 1 in started(new_plan):
            return
        state, now = end_due(advance(state, new_plan, now), now + 300), now + 300
    raise AssertionError("starved")
