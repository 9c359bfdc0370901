"""A small language for clusters and queues: `cluster(node(1, gpus=8), jobs=[job(1, gpus=4)])`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from scheduling.engine.affinity import Taint
from scheduling.engine.model import (
    Device,
    DeviceHold,
    Job,
    Node,
    Placement,
    Plan,
    Policy,
    RankPlacement,
    Reason,
    Request,
    RunningJob,
    Snapshot,
    Tenant,
)
from scheduling.engine.planner import plan

NOW = 1_000_000.0
A100 = "NVIDIA A100-SXM4-80GB"


def gpu(id: int, memory_mb: int | None = 80_000, model: str = A100, **more: bool | int | float | None) -> Device:
    return replace(Device(id, model, memory_mb), **more)  # type: ignore[arg-type]


def node(
    id: int,
    gpus: int | Sequence[Device] = 8,
    *,
    cpu: int = 64,
    memory_mb: int = 256_000,
    labels: dict[str, str] | None = None,
    is_open: bool = True,
    is_online: bool = True,
    taints: Iterable[Taint] = (),
) -> Node:
    """Make a node. `gpus`: how many, with ids 100 x node + 0, 1, …; or the devices themselves. `cpu` in cores."""
    devices = tuple(gpu(100 * id + n) for n in range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    cpu_milli, marks = cpu * 1000, tuple(taints)
    return Node(
        id, f"n{id}", cpu_milli, memory_mb, cpu_milli, memory_mb, devices, labels or {}, is_open, is_online, marks
    )


def ask(gpus: int = 1, *, cpu_milli: int = 1000, memory_mb: int = 0, **more: object) -> Request:
    return replace(Request(gpus, cpu_milli=cpu_milli, memory_mb=memory_mb), **more)  # type: ignore[arg-type]


def job(
    id: int,
    gpus: int = 1,
    *,
    tenant: int = 1,
    priority: int = 500,
    age: float | None = None,
    minutes: float | None = None,
    request: Request | None = None,
    user: int = 0,
    online: bool = False,
    **more: object,
) -> Job:
    """Make a job. `age`: seconds since it was queued, by default the more the smaller its id. `minutes`: its time
    limit."""
    return Job(
        id,
        tenant,
        request or ask(gpus, **more),  # type: ignore[arg-type]
        priority=priority,
        queued_at=NOW - (1000 - id if age is None else age),
        max_runtime_seconds=None if minutes is None else int(minutes * 60),
        user_id=user,
        is_online=online,
    )


def cluster(
    *nodes: Node,
    jobs: Iterable[Job] = (),
    running: Iterable[RunningJob] = (),
    tenants: Sequence[Tenant] = (),
    reserved: int | None = None,
) -> Snapshot:
    """Make a snapshot; tenant 1, and tenants that only jobs name, are added without limits."""
    jobs, running = tuple(jobs), tuple(running)
    jobs_by_id = {tenant.id for tenant in tenants}
    named = {
        1,
        *[waiting_job.tenant_id for waiting_job in jobs],
        *[running_job.tenant_id for running_job in running],
    } - jobs_by_id
    made_up = tuple(Tenant(id, f"t{id}") for id in sorted(named))
    return Snapshot(jobs, running, nodes, (*tenants, *made_up), reserved)


def decide(snapshot: Snapshot, policy: Policy = Policy(), now: float = NOW) -> Plan:
    return plan(snapshot, policy, now)


def started(new_plan: Plan) -> set[int]:
    return {placement.job_id for placement in new_plan.placements}


def reason(new_plan: Plan, job_id: int) -> Reason:
    (result,) = [entry for entry in new_plan.reasons if entry.job_id == job_id]
    return result


def nodes_of(new_plan: Plan, job_id: int) -> list[int]:
    (result,) = [placement for placement in new_plan.placements if placement.job_id == job_id]
    return [rank.node_id for rank in result.ranks]


def devices_of(new_plan: Plan, job_id: int) -> list[int]:
    (result,) = [placement for placement in new_plan.placements if placement.job_id == job_id]
    return [hold.device_id for rank in result.ranks for hold in rank.holds]


def occupy(node: Node, ranks: Iterable[RankPlacement], sign: int = 1) -> Node:
    """Return the node with these ranks allocated (or released, with sign -1)."""
    for rank in ranks:
        if rank.node_id != node.id:
            continue
        holds = {hold.device_id: hold for hold in rank.holds}
        node = replace(
            node,
            cpu_milli_free=node.cpu_milli_free - sign * rank.cpu_milli,
            memory_mb_free=node.memory_mb_free - sign * rank.memory_mb,
            devices=tuple(_occupied(device, holds.get(device.id), sign) for device in node.devices),
        )
    return node


def _occupied(device: Device, hold: DeviceHold | None, sign: int) -> Device:
    if hold is None:
        return device
    if hold.memory_mb is None:
        return replace(device, exclusive=sign > 0)
    return replace(device, shared_mb=device.shared_mb + sign * hold.memory_mb)


def run(snapshot: Snapshot, job: Job, placement: Placement, now: float = NOW) -> Snapshot:
    """Return the snapshot once a placement has started."""
    ends_by = None if job.max_runtime_seconds is None else now + job.max_runtime_seconds
    new = RunningJob(
        job.id,
        job.tenant_id,
        job.request,
        placement.ranks,
        now,
        ends_by,
        job.priority,
        user_id=job.user_id,
        is_online=job.is_online,
        grace_seconds=job.grace_seconds,
        booking_id=placement.booking_id,
    )
    return replace(
        snapshot,
        jobs=tuple(waiting_job for waiting_job in snapshot.jobs if waiting_job.id != job.id),
        running=(*snapshot.running, new),
        nodes=tuple(occupy(node, placement.ranks) for node in snapshot.nodes),
    )


def advance(snapshot: Snapshot, new_plan: Plan, now: float = NOW) -> Snapshot:
    """Start the plan's placements and keep its promise."""
    waiting = {waiting_job.id: waiting_job for waiting_job in snapshot.jobs}
    for placement in new_plan.placements:
        snapshot = run(snapshot, waiting[placement.job_id], placement, now)
    return replace(snapshot, reserved_job_id=new_plan.reservation.job_id if new_plan.reservation else None)


def end_due(snapshot: Snapshot, now: float) -> Snapshot:
    """End the jobs that have reached their time limit."""
    due = [
        running_job
        for running_job in snapshot.running
        if (inf if running_job.ends_by is None else running_job.ends_by) <= now
    ]
    ranks = [rank for entry in due for rank in entry.ranks]
    return replace(
        snapshot,
        running=tuple(running_job for running_job in snapshot.running if running_job not in due),
        nodes=tuple(occupy(node, ranks, sign=-1) for node in snapshot.nodes),
    )


def running_on(snapshot: Snapshot, *jobs: Job, now: float = NOW) -> Snapshot:
    """Return the snapshot with these jobs running, placed by the planner itself."""
    waiting = snapshot.jobs
    new_plan = decide(replace(snapshot, jobs=jobs), now=now)
    assert started(new_plan) == {waiting_job.id for waiting_job in jobs}
    after = advance(replace(snapshot, jobs=jobs), new_plan, now)
    return replace(after, jobs=waiting, reserved_job_id=snapshot.reserved_job_id)
