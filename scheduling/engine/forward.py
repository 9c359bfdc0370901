"""Carries a snapshot forward: jobs that start, are told to stop, or end, and what the nodes have free then."""

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
    """The snapshot once these placements, made for it, have started."""
    placed = {placement.job_id: placement.ranks for placement in placements}
    if not placed:
        return snapshot
    jobs = {job.id: job for job in snapshot.jobs if job.id in placed}
    new = tuple(_running(jobs[job_id], ranks, now) for job_id, ranks in placed.items())
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.id not in placed),
        running=(*snapshot.running, *new),
        nodes=_nodes(snapshot.nodes, [rank for ranks in placed.values() for rank in ranks], 1),
        claims=tuple(claim for claim in snapshot.claims if claim.job_id not in placed),
    )


def stopping(snapshot: Snapshot, preemptions: Iterable[Preemption], claims: tuple[Nomination, ...]) -> Snapshot:
    """The snapshot once the victims of these preemptions have been told to stop; what they hold stays theirs.
    `claims`: those of the plan."""
    told = {victim: one.job_id for one in preemptions for victim in one.victims}
    if not told and claims == snapshot.claims:
        return snapshot
    return replace(
        snapshot,
        claims=claims,
        running=tuple(
            replace(one, is_stopping=True, stopping_for=told[one.job_id]) if one.job_id in told else one
            for one in snapshot.running
        ),
    )


def ended(snapshot: Snapshot, job_ids: Collection[int], *, requeued: Collection[int] = ()) -> Snapshot:
    """The snapshot once these running jobs have ended; of them, `requeued` wait again from their old queue time."""
    gone = [one for one in snapshot.running if one.job_id in job_ids]
    if not gone:
        return snapshot
    back = tuple(_waiting(one) for one in gone if one.job_id in requeued)
    return replace(
        snapshot,
        jobs=(*snapshot.jobs, *back),
        running=tuple(one for one in snapshot.running if one.job_id not in job_ids),
        nodes=_nodes(snapshot.nodes, [rank for one in gone for rank in one.ranks], -1),
    )


def restored(snapshot: Snapshot, running: Sequence[RunningJob]) -> Snapshot:
    """The snapshot as if these jobs, which have ended, still ran where they did."""
    if not running:
        return snapshot
    ids = {one.job_id for one in running}
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if job.id not in ids),
        running=(*snapshot.running, *running),
        nodes=_nodes(snapshot.nodes, [rank for one in running for rank in one.ranks], 1),
    )


def _running(job: Job, ranks: tuple[RankPlacement, ...], now: float) -> RunningJob:
    return RunningJob(
        job_id=job.id,
        tenant_id=job.tenant_id,
        request=job.request,
        ranks=ranks,
        started_at=now,
        ends_by=None if job.max_runtime_seconds is None else now + job.max_runtime_seconds,
        priority=job.priority,
        user_id=job.user_id,
        is_online=job.is_online,
        waited_seconds=max(now - max(job.queued_at, job.eligible_at), 0.0),
    )


def _waiting(one: RunningJob) -> Job:
    limit = None if one.ends_by is None else max(round(one.ends_by - one.started_at), 1)
    return Job(
        id=one.job_id,
        tenant_id=one.tenant_id,
        request=one.request,
        priority=one.priority,
        user_id=one.user_id,
        queued_at=one.started_at - one.waited_seconds,
        max_runtime_seconds=limit,
        is_online=one.is_online,
    )


def _nodes(nodes: tuple[Node, ...], ranks: Iterable[RankPlacement], sign: int) -> tuple[Node, ...]:
    """The nodes with what these ranks take taken (1) or given back (-1)."""
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
