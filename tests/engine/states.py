"""Random small states for the invariants: up to three nodes, a handful of jobs, some running, some limits."""

from dataclasses import replace

from hypothesis import strategies as st

from scheduling.engine.model import Device, Job, Node, Policy, Request, Snapshot, Tenant
from tests.engine.scenario import NOW, advance, decide

MODELS = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe")

policies = st.builds(Policy, name=st.sampled_from(["fair", "priority"]), gangs=st.sampled_from([True, True, False]))

_requests = st.builds(
    Request,
    gpu_count=st.sampled_from([0, 1, 1, 2, 2, 3, 4]),
    gpu_memory_mb=st.sampled_from([None, 20, 30, 60]),
    gpu_models=st.sampled_from([(), (), ("A100",), ("h100",), ("A100", "H100")]),
    shared=st.booleans(),
    cpu_milli=st.sampled_from([0, 1000, 3000]),
    memory_mb=st.sampled_from([0, 0, 500]),
    gang=st.booleans(),
    node_selector=st.sampled_from([(), (), (("zone", "a"),)]),
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Valid ones: sharing says how much, and ranks divide the GPUs."""
    request = draw(_requests)
    divisors = [n for n in (1, 2, 3, 4) if request.gpu_count % n == 0]
    ranks = draw(st.sampled_from([None, None, *divisors]))
    return replace(request, ranks=ranks, shared=request.shared and request.gpu_memory_mb is not None)


@st.composite
def nodes(draw: st.DrawFn, id: int) -> Node:
    count = draw(st.integers(0, 3))
    devices = tuple(
        Device(
            id * 10 + n,
            draw(st.sampled_from(MODELS)),
            draw(st.sampled_from([40, 40, 80, None])),
            is_healthy=draw(st.sampled_from([True, True, True, False])),
        )
        for n in range(count)
    )
    cpu, memory_mb = draw(st.sampled_from([2000, 8000])), draw(st.sampled_from([600, 4000]))
    labels = draw(st.sampled_from([{}, {"zone": "a"}]))
    is_open = draw(st.sampled_from([True, True, True, False]))
    return Node(id, f"n{id}", cpu, memory_mb, cpu, memory_mb, devices, labels, is_open)


@st.composite
def jobs(draw: st.DrawFn, id: int) -> Job:
    return Job(
        id,
        draw(st.integers(1, 2)),
        draw(requests()),
        priority=draw(st.sampled_from([300, 500, 500, 1000])),
        queued_at=NOW - draw(st.integers(0, 3)) * 3600,
        eligible_at=draw(st.sampled_from([0.0, 0.0, 0.0, NOW + 60])),
        max_runtime_seconds=draw(st.sampled_from([None, 60, 600, 6000])),
    )


@st.composite
def tenants(draw: st.DrawFn, id: int) -> Tenant:
    def limit(*values: int) -> int | None:
        return draw(st.sampled_from([None, None, None, *values]))

    return Tenant(
        id,
        f"t{id}",
        weight=draw(st.sampled_from([1.0, 3.0])),
        tier=draw(st.sampled_from([1, 1, 2])),
        guaranteed_gpus=draw(st.sampled_from([0, 0, 2])),
        max_gpus=limit(1, 3),
        max_gpu_memory_mb=limit(80, 120),
        max_cpu_milli=limit(3000),
        max_memory_mb=limit(500),
        max_concurrent_jobs=limit(1, 2),
        usage_gpu_seconds=draw(st.sampled_from([0.0, 1e6])),
    )


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """Some of the jobs run already, placed half an hour ago by the planner itself; the rest wait."""
    made = tuple(draw(nodes(id)) for id in range(1, 1 + draw(st.integers(0, 3))))
    waiting = tuple(draw(jobs(id)) for id in range(1, 1 + draw(st.integers(0, 5))))
    earlier = tuple(replace(draw(jobs(id)), eligible_at=0.0) for id in range(11, 11 + draw(st.integers(0, 3))))
    both = (draw(tenants(1)), draw(tenants(2)))
    before = Snapshot(earlier, (), made, both)
    after = advance(before, decide(before, now=NOW - 30), NOW - 30)
    reserved = draw(st.sampled_from([None, *[job.id for job in waiting]]))
    return replace(after, jobs=waiting, reserved_job_id=reserved)
