"""Hard limits of tenants, in every dimension, and their effect on the tenant's other jobs."""

from dataclasses import replace

import pytest

from scheduling.engine.model import Job, Tenant
from tests.engine.scenario import (
    NOW,
    advance,
    cluster,
    decide,
    end_due,
    gpu,
    job,
    node,
    nodes_of,
    reason,
    running_on,
    started,
)

# Per limit: a tenant that has room for two of the jobs, the jobs, and the evidence of the third.
LIMITS = {
    "GPUs": (Tenant(1, "nlp", max_gpus=5), {"gpus": 2}, (2, 5, 4)),
    "MiB of GPU memory": (
        Tenant(1, "nlp", max_gpu_memory_mb=170_000),
        {"gpu_memory_mb": 10},
        (80_000, 170_000, 160_000),
    ),
    "CPU cores": (Tenant(1, "nlp", max_cpu_milli=4000), {"cpu_milli": 1500}, (1.5, 4, 3)),
    "MiB of memory": (Tenant(1, "nlp", max_memory_mb=250), {"memory_mb": 100}, (100, 250, 200)),
    "concurrent jobs": (Tenant(1, "nlp", max_concurrent_jobs=2), {}, (1, 2, 2)),
}


@pytest.mark.parametrize("dimension", LIMITS)
def test_a_limit_is_never_exceeded_and_the_reason_counts_it(dimension: str) -> None:
    tenant, shape, (requested, limit, in_use) = LIMITS[dimension]
    new_plan = decide(cluster(node(1), jobs=[job(id, **shape) for id in (1, 2, 3)], tenants=[tenant]))  # type: ignore[arg-type]
    assert started(new_plan) == {1, 2}
    waits = reason(new_plan, 3)
    assert waits.code == "quota_wait"
    assert waits.evidence == {
        "tenant": "nlp",
        "dimension": dimension,
        "requested": requested,
        "limit": limit,
        "in_use": in_use,
        "whose": "tenant nlp",
    }


@pytest.mark.parametrize("dimension", LIMITS)
def test_running_jobs_count_for_the_limit(dimension: str) -> None:
    tenant, shape, _ = LIMITS[dimension]
    jobs = [job(id, **shape) for id in (1, 2, 3)]  # type: ignore[arg-type]
    state = running_on(cluster(node(1), tenants=[tenant]), jobs[0], jobs[1])
    assert started(decide(replace(state, jobs=(jobs[2],)))) == set()


def test_a_request_above_the_limit_by_itself_can_never_start() -> None:
    new_plan = decide(cluster(node(1), jobs=[job(1, gpus=4)], tenants=[Tenant(1, "nlp", max_gpus=2)]))
    assert reason(new_plan, 1).code == "tenant_limit"
    assert reason(new_plan, 1).evidence == {"requested": 4, "dimension": "GPUs", "limit": 2, "tenant": "nlp"}


def test_shared_device_counts_by_the_memory_taken() -> None:
    jobs = [job(id, shared=True, gpu_memory_mb=20_000) for id in (1, 2, 3)]
    new_plan = decide(cluster(node(1), jobs=jobs, tenants=[Tenant(1, "nlp", max_gpu_memory_mb=40_000)]))
    assert started(new_plan) == {1, 2}


def test_a_memory_limit_spreads_a_gang_to_smaller_devices() -> None:
    """The fewest nodes would take four devices of 80,000 MiB; the limit allows four of 40,000."""
    big = node(1, gpus=[gpu(n) for n in range(4)])
    small = [node(id, gpus=[gpu(10 * id + n, 40_000) for n in range(2)]) for id in (2, 3)]
    gang = job(1, gpus=4, gang=True)
    assert started(decide(cluster(big, *small, jobs=[gang], tenants=[Tenant(1, "a", max_gpu_memory_mb=160_000)]))) == {
        1
    }
    whole = replace(gang, request=replace(gang.request, gang=False))
    assert (
        started(decide(cluster(big, *small, jobs=[whole], tenants=[Tenant(1, "a", max_gpu_memory_mb=160_000)])))
        == set()
    )


def test_ranks_of_a_job_that_is_no_gang_are_never_spread_for_a_memory_limit() -> None:
    nodes = [node(1, gpus=[gpu(1), gpu(2)]), *[node(id, gpus=[gpu(10 * id, 40_000)]) for id in (2, 3)]]
    new_plan = decide(
        cluster(*nodes, jobs=[job(1, gpus=2, ranks=2)], tenants=[Tenant(1, "a", max_gpu_memory_mb=100_000)])
    )
    assert started(new_plan) == set()


def test_a_blocked_job_lets_others_of_its_tenant_pass_that_fit_beside_it() -> None:
    """Limit 10, 4 in use, 8 requested: two GPUs are spare when the four have ended, so two may run for ever, not four."""
    tenant = Tenant(1, "nlp", max_gpus=10)
    state = running_on(cluster(node(1, gpus=16, cpu=64), tenants=[tenant]), job(9, gpus=4, minutes=60))
    head, spare, more = job(1, gpus=8), job(2, gpus=2), job(3, gpus=2)
    new_plan = decide(replace(state, jobs=(head, spare, more)))
    assert started(new_plan) == {2}
    assert reason(new_plan, 1).evidence["in_use"] == 4
    assert reason(new_plan, 3).code == "quota_wait"
    assert reason(new_plan, 3).evidence["promised_to"] == 1


def test_a_job_that_ends_before_the_limit_is_free_passes() -> None:
    tenant = Tenant(1, "nlp", max_gpus=10)
    state = running_on(cluster(node(1, gpus=16), tenants=[tenant]), job(9, gpus=4, minutes=60))
    new_plan = decide(replace(state, jobs=(job(1, gpus=8), job(2, gpus=6, minutes=60), job(3, gpus=4, minutes=61))))
    assert started(new_plan) == {2}


def test_another_dimension_is_not_blocked() -> None:
    tenant = Tenant(1, "nlp", max_gpus=2)
    state = running_on(cluster(node(1), tenants=[tenant]), job(9))
    assert started(decide(replace(state, jobs=(job(1, gpus=2), job(2, gpus=0))))) == {2}


def test_a_stream_of_small_jobs_cannot_keep_a_large_one_out_of_its_quota() -> None:
    """A12, for limits: it starts when the earlier jobs have ended, at 10 minutes."""
    tenant = Tenant(1, "nlp", max_gpus=4)
    state = running_on(cluster(node(1), tenants=[tenant]), *[job(90 + n, minutes=10) for n in range(3)])
    large = job(1, gpus=4, age=1)

    def stream(minute: int) -> tuple[Job, ...]:
        return tuple(job(1000 + 10 * minute + n, minutes=7, age=-60.0 * minute) for n in range(4))

    for minute in range(40):
        now = NOW + 60 * minute
        state = end_due(state, now)
        state = replace(state, jobs=(*state.jobs, *stream(minute)))
        if minute == 0:
            state = replace(state, jobs=(large, *state.jobs))
        new_plan = decide(state, now=now)
        if large.id in started(new_plan):
            break
        state = advance(state, new_plan, now)
    assert minute == 10


def test_limits_of_one_tenant_do_not_touch_another() -> None:
    new_plan = decide(cluster(node(1), jobs=[job(1), job(2), job(3, tenant=2)], tenants=[Tenant(1, "a", max_gpus=1)]))
    assert started(new_plan) == {1, 3}


H100 = "NVIDIA H100 PCIe"


def test_a_limit_per_user_stops_that_user_alone() -> None:
    jobs = [job(1, user=7), job(2, user=7), job(3, user=7), job(4, user=8)]
    new_plan = decide(cluster(node(1), jobs=jobs, tenants=[Tenant(1, "nlp", max_gpus_per_user=2)]))
    assert started(new_plan) == {1, 2, 4}
    waits = reason(new_plan, 3)
    assert waits.code == "user_cap"
    assert waits.evidence == {"tenant": "nlp", "requested": 1, "in_use": 2, "user_limit": 2}


def test_running_jobs_of_a_user_count_for_the_limit_per_user() -> None:
    tenant = Tenant(1, "nlp", max_gpus_per_user=2)
    state = running_on(cluster(node(1), tenants=[tenant]), job(8, gpus=2, user=7), job(9, gpus=2, user=8))
    assert started(decide(replace(state, jobs=(job(1, user=7), job(2, user=9))))) == {2}


def test_a_user_at_the_limit_does_not_keep_the_tenants_limit_from_others() -> None:
    """The limit of eight is not promised to the user at the limit per user: two GPUs may run for ever."""
    tenant = Tenant(1, "nlp", max_gpus=8, max_gpus_per_user=4)
    state = running_on(cluster(node(1), tenants=[tenant]), job(8, gpus=4, user=7), job(9, gpus=2, user=8, minutes=60))
    new_plan = decide(replace(state, jobs=(job(1, gpus=4, user=7), job(2, gpus=2, user=8))))
    assert started(new_plan) == {2}


def test_large_job_of_a_user_is_not_starved_by_small_ones() -> None:
    """A12, for the limit per user: small jobs that would delay it once the others have ended do not pass."""
    tenant = Tenant(1, "nlp", max_gpus_per_user=4)
    state = running_on(cluster(node(1, gpus=16), tenants=[tenant]), job(9, gpus=3, user=7, minutes=60))
    new_plan = decide(replace(state, jobs=(job(1, gpus=4, user=7), job(2, user=7), job(3, user=7, minutes=30))))
    assert started(new_plan) == {3}
    assert reason(new_plan, 2).evidence["promised_to"] == 1


def test_a_request_above_the_limit_per_user_can_never_start() -> None:
    new_plan = decide(cluster(node(1), jobs=[job(1, gpus=4)], tenants=[Tenant(1, "nlp", max_gpus_per_user=2)]))
    assert (reason(new_plan, 1).code, reason(new_plan, 1).evidence["dimension"]) == ("tenant_limit", "GPUs per user")


def test_a_limit_per_model_counts_that_model_alone() -> None:
    tenant = Tenant(1, "nlp", max_gpus_by_model=(("A100", 2),))
    nodes = [node(1), node(2, gpus=[gpu(200 + n, model=H100) for n in range(8)])]
    a100 = [job(id, gpu_models=("A100",)) for id in (1, 2, 3)]
    new_plan = decide(cluster(*nodes, jobs=[*a100, job(4, gpus=4, gpu_models=("H100",))], tenants=[tenant]))
    assert started(new_plan) == {1, 2, 4}
    waits = reason(new_plan, 3)
    assert waits.code == "quota_wait"
    assert waits.evidence == {
        "tenant": "nlp",
        "whose": "tenant nlp",
        "dimension": "A100 GPUs",
        "requested": 1,
        "limit": 2,
        "in_use": 2,
    }


def test_a_job_that_takes_any_model_goes_to_one_that_the_limits_leave() -> None:
    """A10: the A100 node would be the tighter fit, and its limit is used up."""
    tenant = Tenant(1, "nlp", max_gpus_by_model=(("A100", 1),))
    nodes = [node(1, gpus=2), node(2, gpus=[gpu(200 + n, model=H100) for n in range(8)])]
    new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=2)], tenants=[tenant]))
    assert nodes_of(new_plan, 1) == [2]


def test_a_request_above_the_limit_of_the_only_model_that_it_names_can_never_start() -> None:
    """A04, also if no such GPU has joined yet."""
    tenant = Tenant(1, "nlp", max_gpus_by_model=(("A100", 2),))
    for nodes in ([node(1)], [node(1, gpus=[gpu(1, model=H100)])]):
        new_plan = decide(cluster(*nodes, jobs=[job(1, gpus=4, gpu_models=("A100",))], tenants=[tenant]))
        assert reason(new_plan, 1).code == "tenant_limit"
        assert reason(new_plan, 1).evidence == {"requested": 4, "dimension": "A100 GPUs", "limit": 2, "tenant": "nlp"}


def test_limit_below_present_use_does_not_stop_jobs_that_take_none_of_it() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=4))
    state = replace(state, tenants=(Tenant(1, "nlp", max_gpus=2),), jobs=(job(1, gpus=0), job(2)))
    assert started(decide(state)) == {1}


def test_job_that_exceeds_the_limits_per_model_together_is_promised_nothing() -> None:
    """A12, A18, A20: it can never start, so it keeps no GPU from others, whether or not enough are free now."""
    tenant = Tenant(1, "t1", max_gpus_by_model=(("A100", 2), ("H100", 0)))
    gpus = [gpu(1), gpu(2), gpu(3, model="NVIDIA H100 PCIe")]
    state = running_on(cluster(node(1, gpus), tenants=[tenant, Tenant(2, "t2")]), job(9, tenant=2, minutes=60))
    new_plan = decide(replace(state, jobs=(job(1, 3), job(2, 2, tenant=2))))
    assert reason(new_plan, 1).code == "tenant_limit"
    assert new_plan.reservation is None and started(new_plan) == {2}
