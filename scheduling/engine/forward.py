"""Carries a snapshot forward: jobs that start, are stopped, or end, and the resulting free capacity of the nodes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from scheduling.engine.model import (
    Device,
    DeviceHold,
    Job,
    Node,
    Nomination,
    Placement,
    Preemption,
    RankPlacement,
    RunningJob,
    Snapshot,
)


def started(snapshot: Snapshot, placements: Iterable[Placement], now: float) -> Snapshot:
    """Return the snapshot once these placements, made for it, have started."""
    placed = {placement.job_id: placement for placement in placements}
    if not placed:
        return snapshot
    jobs = {job.id: job for job in snapshot.jobs if job.id in placed}
    new = tuple(_running(jobs[job_id], placement, now) for job_id, placement in placed.items())
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.id not in placed),
        running=(*snapshot.running, *new),
        nodes=_nodes(snapshot.nodes, [rank for placement in placed.values() for rank in placement.ranks], 1),
        claims=tuple(nomination for nomination in snapshot.claims if nomination.job_id not in placed),
    )


def stopping(snapshot: Snapshot, preemptions: Iterable[Preemption], nominations: tuple[Nomination, ...]) -> Snapshot:
    """Return the snapshot once the victims of these preemptions are stopping; they still hold their resources.
    `nominations`: those of the plan."""
    stopped_for = {victim: preemption.job_id for preemption in preemptions for victim in preemption.victims}
    if not stopped_for and nominations == snapshot.claims:
        return snapshot
    return replace(
        snapshot,
        claims=nominations,
        running=tuple(
            replace(job, is_stopping=True, stopping_for=stopped_for[job.job_id]) if job.job_id in stopped_for else job
            for job in snapshot.running
        ),
    )


def ended(snapshot: Snapshot, job_ids: Collection[int], *, requeued: Collection[int] = ()) -> Snapshot:
    """Return the snapshot once these running jobs have ended; `requeued` ones wait again with their old queue time."""
    ended_jobs = [job for job in snapshot.running if job.job_id in job_ids]
    if not ended_jobs:
        return snapshot
    waiting = tuple(_waiting(job) for job in ended_jobs if job.job_id in requeued)
    return replace(
        snapshot,
        jobs=(*snapshot.jobs, *waiting),
        running=tuple(job for job in snapshot.running if job.job_id not in job_ids),
        nodes=_nodes(snapshot.nodes, [rank for job in ended_jobs for rank in job.ranks], -1),
    )


def restored(snapshot: Snapshot, running: Sequence[RunningJob]) -> Snapshot:
    """Return the snapshot as if these jobs, which have ended, still ran where they did."""
    if not running:
        return snapshot
    ids = {job.job_id for job in running}
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.id not in ids),
        running=(*snapshot.running, *running),
        nodes=_nodes(snapshot.nodes, [rank for job in running for rank in job.ranks], 1),
    )


def _running(job: Job, placement: Placement, now: float) -> RunningJob:
    return RunningJob(
        job_id=job.id,
        tenant_id=job.tenant_id,
        request=job.request,
        ranks=placement.ranks,
        started_at=now,
        ends_by=None if job.max_runtime_seconds is None else now + job.max_runtime_seconds,
        priority=job.priority,
        user_id=job.user_id,
        is_online=job.is_online,
        grace_seconds=job.grace_seconds,
        waited_seconds=max(now - max(job.queued_at, job.eligible_at), 0.0),
        booking_id=placement.booking_id,
    )


def _waiting(job: RunningJob) -> Job:
    limit = None if job.ends_by is None else max(round(job.ends_by - job.started_at), 1)
    return Job(
        id=job.job_id,
        tenant_id=job.tenant_id,
        request=job.request,
        priority=job.priority,
        user_id=job.user_id,
        queued_at=job.started_at - job.waited_seconds,
        max_runtime_seconds=limit,
        grace_seconds=job.grace_seconds,
        is_online=job.is_online,
    )


def _nodes(nodes: tuple[Node, ...], ranks: Iterable[RankPlacement], sign: int) -> tuple[Node, ...]:
    """Return the nodes with these ranks allocated (sign 1) or released (-1)."""
    by_node: dict[int, list[RankPlacement]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node_id, []).append(rank)
    return tuple(_node(node, by_node[node.id], sign) if node.id in by_node else node for node in nodes)


def _node(node: Node, ranks: list[RankPlacement], sign: int) -> Node:
    holds: dict[int, list[DeviceHold]] = {}
    for rank in ranks:
        for hold in rank.holds:
            holds.setdefault(hold.device_id, []).append(hold)
    return replace(
        node,
        cpu_milli_free=node.cpu_milli_free - sign * sum(rank.cpu_milli for rank in ranks),
        memory_mb_free=node.memory_mb_free - sign * sum(rank.memory_mb for rank in ranks),
        devices=_devices(node.devices, holds, sign),
    )


def _devices(devices: tuple[Device, ...], holds: Mapping[int, list[DeviceHold]], sign: int) -> tuple[Device, ...]:
    return tuple(_device(device, holds[device.id], sign) if device.id in holds else device for device in devices)


def _device(device: Device, holds: list[DeviceHold], sign: int) -> Device:
    for hold in holds:
        if hold.memory_mb is None:
            device = replace(device, exclusive=sign > 0)
        else:
            device = replace(device, shared_mb=max(device.shared_mb + sign * hold.memory_mb, 0))
    return device
