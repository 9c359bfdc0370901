"""Hard limits of tenants, in every dimension, and what they do to the tenant's other jobs."""

from dataclasses import replace

import pytest

from scheduling.engine.model import Job, Tenant
from tests.engine.scenario import NOW, advance, cluster, decide, end_due, gpu, job, node, reason, running_on, started

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
    made = decide(cluster(node(1), jobs=[job(id, **shape) for id in (1, 2, 3)], tenants=[tenant]))  # type: ignore[arg-type]
    assert started(made) == {1, 2}
    waits = reason(made, 3)
    assert waits.code == "quota_wait"
    assert waits.evidence == {
        "tenant": "nlp",
        "dimension": dimension,
        "requested": requested,
        "limit": limit,
        "in_use": in_use,
    }


@pytest.mark.parametrize("dimension", LIMITS)
def test_what_runs_counts_for_the_limit(dimension: str) -> None:
    tenant, shape, _ = LIMITS[dimension]
    jobs = [job(id, **shape) for id in (1, 2, 3)]  # type: ignore[arg-type]
    state = running_on(cluster(node(1), tenants=[tenant]), jobs[0], jobs[1])
    assert started(decide(replace(state, jobs=(jobs[2],)))) == set()


def test_a_request_above_the_limit_by_itself_can_never_start() -> None:
    made = decide(cluster(node(1), jobs=[job(1, gpus=4)], tenants=[Tenant(1, "nlp", max_gpus=2)]))
    assert reason(made, 1).code == "tenant_limit"
    assert reason(made, 1).evidence == {"requested": 4, "dimension": "GPUs", "limit": 2, "tenant": "nlp"}


def test_a_shared_device_counts_for_what_is_taken_of_it() -> None:
    jobs = [job(id, shared=True, gpu_memory_mb=20_000) for id in (1, 2, 3)]
    made = decide(cluster(node(1), jobs=jobs, tenants=[Tenant(1, "nlp", max_gpu_memory_mb=40_000)]))
    assert started(made) == {1, 2}


def test_a_memory_limit_spreads_a_gang_to_smaller_devices() -> None:
    """Fewest nodes would take four devices of 80,000 MiB; the limit leaves room for four of 40,000."""
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
    made = decide(cluster(*nodes, jobs=[job(1, gpus=2, ranks=2)], tenants=[Tenant(1, "a", max_gpu_memory_mb=100_000)]))
    assert started(made) == set()


def test_a_blocked_job_lets_others_of_its_tenant_pass_that_fit_beside_it() -> None:
    """Limit 10, 4 in use, 8 wanted: two GPUs are spare when the four have ended, so two may go for ever, not four."""
    tenant = Tenant(1, "nlp", max_gpus=10)
    state = running_on(cluster(node(1, gpus=16, cpu=64), tenants=[tenant]), job(9, gpus=4, minutes=60))
    head, spare, more = job(1, gpus=8), job(2, gpus=2), job(3, gpus=2)
    made = decide(replace(state, jobs=(head, spare, more)))
    assert started(made) == {2}
    assert reason(made, 1).evidence["in_use"] == 4
    assert reason(made, 3).code == "quota_wait"
    assert reason(made, 3).evidence["promised_to"] == 1


def test_a_job_that_ends_before_the_limit_is_free_passes() -> None:
    tenant = Tenant(1, "nlp", max_gpus=10)
    state = running_on(cluster(node(1, gpus=16), tenants=[tenant]), job(9, gpus=4, minutes=60))
    made = decide(replace(state, jobs=(job(1, gpus=8), job(2, gpus=6, minutes=60), job(3, gpus=4, minutes=61))))
    assert started(made) == {2}


def test_another_dimension_is_not_blocked() -> None:
    tenant = Tenant(1, "nlp", max_gpus=2)
    state = running_on(cluster(node(1), tenants=[tenant]), job(9))
    assert started(decide(replace(state, jobs=(job(1, gpus=2), job(2, gpus=0))))) == {2}


def test_a_stream_of_small_jobs_cannot_keep_a_large_one_out_of_its_quota() -> None:
    """A12, for limits: it starts when what ran before it has ended, at 10 minutes."""
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
        made = decide(state, now=now)
        if large.id in started(made):
            break
        state = advance(state, made, now)
    assert minute == 10


def test_limits_of_one_tenant_do_not_touch_another() -> None:
    made = decide(cluster(node(1), jobs=[job(1), job(2), job(3, tenant=2)], tenants=[Tenant(1, "a", max_gpus=1)]))
    assert started(made) == {1, 3}
