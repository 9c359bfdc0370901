"""Identical jobs that differ in what lets one pass another: their time limit, or whether they are online."""

from dataclasses import replace

from scheduling.engine.model import Booking, DeviceHold, RankPlacement, Snapshot, Tenant
from tests.engine.scenario import NOW, cluster, decide, gpu, job, node, nodes_of, reason, running_on, started
from tests.engine.stopping import AT_ONCE

H100 = "NVIDIA H100 PCIe"


def booked(state: Snapshot, starts_in: float, *node_ids: int) -> Snapshot:
    """Return the state with all GPUs of these nodes booked by tenant 2 for an hour."""
    holds = {each.id: tuple(DeviceHold(device.id) for device in each.devices) for each in state.nodes}
    ranks = tuple(RankPlacement(number, id, 0, 0, holds[id]) for number, id in enumerate(node_ids))
    return replace(state, bookings=(Booking(7, 2, NOW + starts_in, NOW + starts_in + 3600, ranks),))


def test_short_job_preempts_though_an_identical_one_would_cross_a_reservation() -> None:
    """A14, A72: the long one is promised the place on one node after the reservation; the other has its victim on the
    other."""
    nodes = cluster(node(1, 1), node(2, 1), tenants=[Tenant(2, "t2")])
    full = running_on(nodes, job(8, minutes=50, priority=100), job(9, minutes=50, priority=100))
    long, short = job(1, priority=2000), job(2, priority=2000, minutes=10)
    new_plan = decide(booked(replace(full, jobs=(long, short)), 3600, 1, 2), AT_ONCE)
    assert [entry.job_id for entry in new_plan.preemptions] == [2]
    assert reason(new_plan, 2).code == "reclaim_pending"
    assert new_plan.reservation is not None and new_plan.reservation.job_id == 1


def test_online_job_preempts_though_an_identical_batch_job_may_not() -> None:
    """A05, A14: batch borrows all A100 GPUs; the batch job that comes first may stop none of it."""
    mixed = cluster(node(1, 3), node(2, 3), node(3, [gpu(1, model=H100), gpu(2, model=H100)]))
    full = running_on(mixed, *[job(id, gpu_models=("A100",)) for id in range(11, 17)])
    jobs = job(1, gpu_models=("A100",)), job(2, gpu_models=("A100",), online=True)
    new_plan = decide(replace(full, jobs=jobs), replace(AT_ONCE, online_percent=50))
    assert [(entry.job_id, entry.rule) for entry in new_plan.preemptions] == [(2, "online")]
    assert reason(new_plan, 1).code == "capacity"


def test_short_job_starts_where_it_counts_less_though_an_identical_one_may_not() -> None:
    """A72: only the GPUs that are booked later leave it within its tenant's limit of GPU memory."""
    large, small = [gpu(1), gpu(2)], [gpu(3, 40_000), gpu(4, 40_000)]
    state = cluster(node(1, large), node(2, small), tenants=[Tenant(1, "t1", max_gpu_memory_mb=80_000), Tenant(2, "b")])
    long, short = job(1, 2, minutes=100), job(2, 2, minutes=1)
    new_plan = decide(booked(replace(state, jobs=(long, short)), 300, 2))
    assert started(new_plan) == {2} and nodes_of(new_plan, 2) == [2]
    assert reason(new_plan, 1).code == "quota_wait"


def test_short_job_starts_beside_the_promise_where_it_counts_less() -> None:
    """A12: the promised GPUs are free for jobs that end in time."""
    large, small = [gpu(1), gpu(2)], [gpu(3, 40_000), gpu(4, 40_000), gpu(5, 40_000)]
    tenants = [Tenant(1, "t1", max_gpu_memory_mb=80_000), Tenant(2, "b")]
    state = running_on(cluster(node(2, small), tenants=tenants), job(9, tenant=2, minutes=30))
    promised = job(3, 3, tenant=2, age=9999, ranks=1, memory_mb=200_000)
    jobs = promised, job(1, 2, minutes=100), job(2, 2, minutes=1)
    state = replace(state, nodes=(*state.nodes, node(1, large, memory_mb=100_000)), jobs=jobs)
    new_plan = decide(replace(state, reserved_job_id=3))
    assert new_plan.reservation is not None and new_plan.reservation.job_id == 3
    assert started(new_plan) == {2} and nodes_of(new_plan, 2) == [2]
