"""Database → Snapshot: everything the engine may know, read in four queries at one moment."""

from typing import Any

import msgspec
from django.conf import settings
from django.db import connection, transaction

from gpusched.lib.sql import query
from scheduling.engine.model import (
    Device,
    DeviceHold,
    Job,
    Node,
    Policy,
    RankPlacement,
    Request,
    Running,
    Snapshot,
    Tenant,
)

_TIERS = {"premium": 0, "standard": 1, "opportunistic": 2}

_JOBS = """
    SELECT j.id, j.tenant_id, j.user_id, j.priority, j.gpu_count, j.gpu_memory_mb, j.gpu_models,
           j.gpu_sharing = 'shared', j.cpu_milli, j.memory_mb, j.gang_scheduling, j.ranks, j.node_selector::text,
           extract(epoch FROM j.submitted_at)::float8, extract(epoch FROM j.eligible_at)::float8,
           j.retries_used, j.max_runtime_seconds, j.attempt, j.reason, j.evidence::text
      FROM jobs_job j WHERE j.state = 'pending'
"""
_RUNNING = """
    SELECT j.id, j.tenant_id, j.priority, j.gpu_count, j.gpu_memory_mb, j.gpu_models,
           j.gpu_sharing = 'shared' AS shared, j.cpu_milli, j.memory_mb, j.gang_scheduling, j.ranks,
           j.max_runtime_seconds, j.preemptible,
           extract(epoch FROM coalesce(j.started_at, a.scheduled_at))::float8 AS started_at,
           s.rank, s.node_id, s.cpu_milli AS rank_cpu, s.memory_mb AS rank_memory,
           (SELECT json_agg(json_build_array(l.device_id, l.memory_mb) ORDER BY l.device_id)
              FROM nodes_allocation l WHERE l.assignment_id = s.id) AS holds
      FROM nodes_assignment s JOIN jobs_job j ON j.id = s.job_id JOIN jobs_attempt a ON a.id = s.attempt_id
     WHERE s.state <> 'ended' ORDER BY j.id, s.rank
"""
_DEVICES = """
    SELECT n.id, n.name, n.state = 'online' AS is_online, n.intent = 'open' AS is_open, n.cpu_cores, n.memory_mb,
           n.labels, d.id AS device_id, d.model, d.memory_mb AS device_mb, d.health = 'ok' AS is_healthy, d.held_whole,
           d.held_mb
      FROM nodes_node n LEFT JOIN nodes_device d ON d.node_id = n.id ORDER BY n.id, d.index, d.id
"""
_TENANTS = """
    SELECT t.id, t.name, t.weight, t.tier, coalesce(q.guaranteed_gpus, 0) AS guaranteed_gpus, q.max_gpus,
           q.max_gpu_memory_mb, q.max_cpu_cores, q.max_memory_mb, q.max_concurrent_jobs,
           coalesce(b.gpu_seconds * power(2, -extract(epoch FROM now() - b.as_of) / %(h)s), 0)
           + coalesce(u.gpu_seconds, 0) AS usage
      FROM tenants_tenant t LEFT JOIN tenants_quota q ON q.tenant_id = t.id
      LEFT JOIN tenants_usagebalance b ON b.tenant_id = t.id
      LEFT JOIN (SELECT j.tenant_id, sum((CASE WHEN l.memory_mb IS NULL THEN 1.0
                                               ELSE l.memory_mb::float8 / greatest(d.memory_mb, 1) END)
                          * %(h)s / ln(2) * (1 - power(2, -extract(epoch FROM now() - s.started_at) / %(h)s)))
                          AS gpu_seconds
                   FROM nodes_allocation l JOIN nodes_assignment s ON s.id = l.assignment_id
                   JOIN nodes_device d ON d.id = l.device_id JOIN jobs_job j ON j.id = s.job_id
                  WHERE s.started_at IS NOT NULL GROUP BY j.tenant_id) u ON u.tenant_id = t.id
     ORDER BY t.id
"""


class Seen:
    """What the commit compares with: for each pending job its attempt, and the reason that it shows now.
    `evidence_is_due`: whether reasons of which only the evidence changed are to be rewritten this time."""

    __slots__ = ("attempts", "evidence_is_due", "now", "reasons")

    def __init__(self) -> None:
        self.now = 0.0
        self.evidence_is_due = True
        self.attempts: dict[int, int] = {}
        self.reasons: dict[int, tuple[str, str]] = {}


def load() -> tuple[Snapshot, Seen]:
    """One consistent view: the four queries see the same moment, which is also the plan's `now`."""
    seen = Seen()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT extract(epoch FROM now())::float8")
            seen.now = cursor.fetchone()[0]
        running = _running()
        snapshot = Snapshot(jobs=_jobs(seen), running=running, nodes=nodes(running), tenants=tenants())
    return snapshot, seen


def policy() -> Policy:
    env = settings.ENV
    return Policy(
        name=env.policy,
        aging_points_per_minute=env.aging_points_per_minute,
        usage_half_life_seconds=env.usage_half_life_days * 86400.0,
        load_ceiling=env.load_threshold,
        load_ceiling_shared=env.load_threshold_shared,
        gangs=env.enable_gang_scheduling,
    )


def _jobs(seen: Seen) -> tuple[Job, ...]:
    """The largest part of a snapshot: plain tuples, and one Request object for each shape rather than for each job."""
    shapes: dict[tuple[Any, ...], Request] = {}
    jobs = []
    with connection.cursor() as cursor:
        cursor.execute(_JOBS)
        for row in cursor.fetchall():
            (job_id, tenant_id, user_id, priority, *shape, queued_at, eligible_at, retries_used, limit,
             attempt, reason, evidence) = row  # fmt: skip
            shape[2] = tuple(shape[2])
            key = tuple(shape)
            request = shapes.get(key)
            if request is None:
                request = shapes[key] = _request(*key)
            seen.attempts[job_id] = attempt
            seen.reasons[job_id] = (reason, evidence)
            jobs.append(
                Job(
                    id=job_id,
                    tenant_id=tenant_id,
                    request=request,
                    priority=priority,
                    user_id=user_id,
                    queued_at=queued_at,
                    eligible_at=eligible_at or 0.0,
                    eligible_reason="retry_backoff" if retries_used else "not_before",
                    max_runtime_seconds=limit,
                )
            )
    return tuple(jobs)


def _request(
    gpus: int,
    gpu_mb: int | None,
    models: tuple[str, ...],
    shared: bool,
    cpu_milli: int,
    memory_mb: int,
    gang: bool,
    ranks: int | None,
    selector: str = "{}",
) -> Request:
    labels = msgspec.json.decode(selector, type=dict[str, str])
    return Request(gpus, gpu_mb, models, shared, cpu_milli, memory_mb, gang, ranks, tuple(sorted(labels.items())))


def _running() -> tuple[Running, ...]:
    by_job: dict[int, list[dict[str, Any]]] = {}
    for row in query(_RUNNING):
        by_job.setdefault(row["id"], []).append(row)
    return tuple(_running_job(rows) for rows in by_job.values())


def _running_job(rows: list[dict[str, Any]]) -> Running:
    first = rows[0]
    limit = first["max_runtime_seconds"]
    ranks = tuple(
        RankPlacement(
            rank=row["rank"],
            node_id=row["node_id"],
            cpu_milli=row["rank_cpu"],
            memory_mb=row["rank_memory"],
            holds=tuple(DeviceHold(device, memory) for device, memory in row["holds"] or ()),
        )
        for row in rows
    )
    return Running(
        job_id=first["id"],
        tenant_id=first["tenant_id"],
        request=_request(
            first["gpu_count"], first["gpu_memory_mb"], tuple(first["gpu_models"]), first["shared"], first["cpu_milli"],
            first["memory_mb"], first["gang_scheduling"], first["ranks"],
        ),
        ranks=ranks,
        started_at=first["started_at"],
        ends_by=None if limit is None else first["started_at"] + limit,
        priority=first["priority"],
        preemptible=first["preemptible"],
    )  # fmt: skip


def nodes(running: tuple[Running, ...] = ()) -> tuple[Node, ...]:
    """All nodes, with what `running` leaves free of their CPU and memory."""
    cpu_used: dict[int, int] = {}
    memory_used: dict[int, int] = {}
    for job in running:
        for rank in job.ranks:
            cpu_used[rank.node_id] = cpu_used.get(rank.node_id, 0) + rank.cpu_milli
            memory_used[rank.node_id] = memory_used.get(rank.node_id, 0) + rank.memory_mb
    by_node: dict[int, list[dict[str, Any]]] = {}
    for row in query(_DEVICES):
        by_node.setdefault(row["id"], []).append(row)
    return tuple(_node(rows, cpu_used.get(i, 0), memory_used.get(i, 0)) for i, rows in by_node.items())


def _node(rows: list[dict[str, Any]], cpu_used: int, memory_used: int) -> Node:
    first = rows[0]
    return Node(
        id=first["id"],
        name=first["name"],
        cpu_milli=first["cpu_cores"] * 1000,
        memory_mb=first["memory_mb"],
        cpu_milli_free=first["cpu_cores"] * 1000 - cpu_used,
        memory_mb_free=first["memory_mb"] - memory_used,
        labels=first["labels"],
        is_open=first["is_open"],
        is_online=first["is_online"],
        devices=tuple(
            Device(r["device_id"], r["model"], r["device_mb"], r["is_healthy"], r["held_whole"] > 0, r["held_mb"])
            for r in rows
            if r["device_id"] is not None
        ),
    )


def tenants() -> tuple[Tenant, ...]:
    """All tenants with their limits and their use, decayed to now and including what runs."""
    return tuple(
        Tenant(
            id=row["id"],
            name=row["name"],
            weight=row["weight"],
            tier=_TIERS[row["tier"]],
            guaranteed_gpus=row["guaranteed_gpus"],
            max_gpus=row["max_gpus"],
            max_gpu_memory_mb=row["max_gpu_memory_mb"],
            max_cpu_milli=None if row["max_cpu_cores"] is None else row["max_cpu_cores"] * 1000,
            max_memory_mb=row["max_memory_mb"],
            max_concurrent_jobs=row["max_concurrent_jobs"],
            usage_gpu_seconds=float(row["usage"]),
        )
        for row in query(_TENANTS, {"h": settings.ENV.usage_half_life_days * 86400.0})
    )
