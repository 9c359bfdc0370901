"""A20, A60: the reason is true of a job that several things keep from starting, or that needs no whole GPU."""

from dataclasses import replace

import pytest

from gpusched.protocol import reasons
from scheduling.engine.model import Booking, DeviceHold, Policy, RankPlacement, Request, Snapshot, Tenant
from scheduling.engine.whatif.counterfactual import alternatives, obstacles
from tests.engine.scenario import NOW, ask, cluster, decide, gpu, job, node, reason, running_on

SICK = [gpu(100), replace(gpu(101), is_healthy=False)]


def sentence(state: Snapshot) -> str:
    why = reason(decide(state), 1)
    return reasons.sentence(why.code, why.evidence)


def test_faulty_gpus_of_a_closed_node_are_behind_its_opening() -> None:
    state = cluster(node(1, SICK, is_open=False), jobs=[job(1, gpus=2)])
    assert sentence(state) == "cordoned, draining or not reporting: 1 node that would fit"


def test_gpu_is_not_called_scattered_if_it_is_apart_and_without_cpu() -> None:
    """Without either demand it would still not start."""
    running = job(9, gpus=0, cpu_milli=64_000, apart="1/web")
    state = replace(running_on(cluster(node(1, gpus=1)), running), jobs=(job(1, apart="1/web"),))
    assert sentence(state) == "no node matches the request: jobs of web run apart from each other"


def test_job_without_gpus_that_is_apart_and_without_cpu_counts_no_gpus() -> None:
    running = job(9, gpus=0, cpu_milli=64_000, apart="1/web")
    state = replace(running_on(cluster(node(1, gpus=0)), running), jobs=(job(1, gpus=0, apart="1/web"),))
    assert reason(decide(state), 1).code == "constraint"


def shared(mb: int) -> Request:
    return ask(gpu_memory_mb=mb, shared=True)


@pytest.mark.parametrize(("mb", "code"), [(30_000, "reserved_soon"), (60_000, "capacity")])
def test_booking_of_a_shared_gpu_is_in_the_way_of_what_has_room_there(mb: int, code: str) -> None:
    """A72: the job has no time limit, and the booking begins in ten minutes."""
    tenants = [Tenant(1, "t1"), Tenant(2, "t2")]
    state = running_on(cluster(node(1, gpus=1), tenants=tenants), job(9, minutes=5, request=shared(20_000)))
    ranks = (RankPlacement(0, 1, 0, 0, (DeviceHold(100),)),)
    booking = Booking(1, 2, NOW + 600, NOW + 1200, ranks)
    state = replace(state, jobs=(job(1, request=shared(mb)),), bookings=(booking,))
    assert reason(decide(state), 1).code == code


@pytest.mark.parametrize("tenant", [Tenant(1, "t1", max_gpus=2), Tenant(1, "t1", max_gpus_per_user=2)])
def test_no_gpus_are_no_smaller_request(tenant: Tenant) -> None:
    """A60: one GPU of the limit remains, too few for two ranks."""
    state = running_on(cluster(node(1), tenants=[tenant]), job(9))
    state = replace(state, jobs=(job(1, request=ask(2, gang=True, ranks=2)),))
    changes = [step.change for step in obstacles(state, Policy(), NOW, 1)]
    changes += alternatives(state, Policy(), NOW, 1)
    assert [change.to for change in changes if change is not None and change.change == "gpu_count"] == []


def test_job_without_gpus_waits_for_no_gpus_of_a_reservation() -> None:
    state = cluster(node(1), jobs=[job(1, gpus=0, cpu_milli=60_000)], tenants=[Tenant(1, "t1"), Tenant(2, "t2")])
    ranks = (RankPlacement(0, 1, 32_000, 0, (DeviceHold(100),)),)
    state = replace(state, bookings=(Booking(1, 2, NOW - 60, NOW + 600, ranks),))
    holder = "CPU cores and memory are free but part of a reservation of another tenant from "
    assert sentence(state).startswith(holder)


def test_job_without_gpus_waits_for_no_gpus_of_a_promise() -> None:
    large = job(2, gpus=0, cpu_milli=64_000, priority=600)
    state = running_on(cluster(node(1)), job(9, gpus=0, cpu_milli=32_000, minutes=60))
    state = replace(state, jobs=(large, job(1, gpus=0, cpu_milli=8000)))
    assert sentence(state).startswith("CPU cores and memory are free but reserved for job 2, ")


def test_job_waits_for_no_gpus_of_jobs_that_hold_none() -> None:
    state = running_on(cluster(node(1)), job(9, gpus=0, cpu_milli=60_000, priority=300))
    state = replace(state, jobs=(job(1, cpu_milli=32_000, priority=1000),))
    why = reason(decide(state, Policy(min_runtime_seconds=0.0, preemption_delay_seconds=0.0)), 1)
    assert reasons.sentence(why.code, why.evidence).startswith("waits for 1 job, being stopped for it by rule priority")
