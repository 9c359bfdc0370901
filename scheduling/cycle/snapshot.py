"""Database → Snapshot: everything the engine may know, read at one moment."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.db import connection, transaction

from gpusched.lib.db.sql import columns, execute, query, rows
from gpusched.protocol import affinity as protocol
from nodes.health import missing_users
from scheduling.cycle import array_heads as arrays
from scheduling.cycle.array_heads import ArrayView, OpenArray
from scheduling.cycle.preemptions import load_nominations
from scheduling.cycle.request_shapes import COLUMNS, recent_mix, request_of
from scheduling.cycle.tenants import load_tenants
from scheduling.engine.affinity import Taint
from scheduling.engine.model import (
    Device,
    DeviceHold,
    Job,
    Node,
    PendingGroup,
    Policy,
    RankPlacement,
    Request,
    RunningJob,
    Snapshot,
)
from scheduling.policy import policy


def require_unix_users(snapshot: Snapshot) -> Snapshot:
    """The same, and unchanged as long as no node has told that it lacks a user. Labels with a space are none that
    people give, and are told as they are in a reason: no node matches Unix user alice."""
    if not (lacks := missing_users.current()):
        return snapshot
    labels = {tenant: _label(user) for _, tenant, user in lacks}
    lacking = {(node, _label(user)) for node, _, user in lacks}
    jobs = tuple(
        replace(job, request=_of_user(job.request, labels[job.tenant_id])) if job.tenant_id in labels else job
        for job in snapshot.jobs
    )
    nodes = tuple(
        replace(node, labels={**node.labels, **_had(node.id, labels.values(), lacking)}) for node in snapshot.nodes
    )
    return replace(snapshot, jobs=jobs, nodes=nodes)


def _label(user: str) -> str:
    return f"Unix user {user}" if user else "a Unix user for tenants without unix_user"


def _had(node: int, labels: Iterable[str], lacking: set[tuple[int, str]]) -> dict[str, str]:
    return {label: "yes" for label in labels if (node, label) not in lacking}


@lru_cache(4096)
def _of_user(request: Request, label: str) -> Request:
    return replace(request, node_selector=tuple(sorted((*request.node_selector, (label, "yes")))))


# With more waiting jobs than this a plan takes long: people are told no more than the plan itself says.
MAX_ASKED_ABOUT = 20_000
# Most waiting jobs are as they were in the last cycle: of those only the row's version is read.
# Who waits for other jobs to end is nothing that the engine need know of.
_WAITS = "state = 'pending' AND open_dependencies = 0 AND array_count IS NULL"
_VERSIONS = f"SELECT id, row_version FROM jobs_all WHERE {_WAITS}"
_JOBS = f"""
    SELECT j.row_version, j.attempt, j.reason, j.evidence::text, j.array_id,
           j.id, j.tenant_id, j.user_id, j.priority, {COLUMNS},
           extract(epoch FROM j.submitted_at)::float8, extract(epoch FROM j.eligible_at)::float8,
           j.max_runtime_seconds, j.predicted_seconds, j.workload_class = 'online'
      FROM jobs_all j WHERE """
_PENDING, _THESE = f"{_JOBS} {_WAITS}", f"{_JOBS} j.id = ANY(%s::bigint[])"
_RUNNING = """
    SELECT j.id, j.tenant_id, j.priority, j.gpu_count, j.gpu_memory_mb, j.gpu_models,
           j.gpu_sharing = 'shared' AS shared, j.cpu_milli, j.memory_mb, j.gang_scheduling, j.ranks,
           j.node_selector::text AS selector, j.topology, j.node_affinity::text AS affinity,
           j.tolerations::text AS tolerations,
           CASE WHEN j.anti_affinity = '' THEN '' ELSE j.tenant_id || '/' || j.anti_affinity END AS apart,
           j.max_runtime_seconds, j.preemptible, j.user_id, j.workload_class = 'online' AS is_online, j.grace_seconds,
           j.state = 'stopping' AS is_stopping, (j.stop_evidence->>'by_job')::bigint AS stopping_for,
           extract(epoch FROM CASE WHEN j.state = 'stopping' THEN j.reason_since END)::float8 AS stopping_since,
           extract(epoch FROM coalesce(j.started_at, a.scheduled_at))::float8 AS started_at,
           extract(epoch FROM a.saved_at)::float8 AS saved_at,
           extract(epoch FROM greatest(j.submitted_at, j.eligible_at))::float8 AS queued_at,
           s.rank, s.node_id, s.cpu_milli AS rank_cpu, s.memory_mb AS rank_memory,
           (SELECT json_agg(json_build_array(l.device_id, l.memory_mb) ORDER BY l.device_id)
              FROM nodes_allocations l WHERE l.assignment_id = s.id) AS holds
      FROM nodes_ranks s JOIN jobs_all j ON j.id = s.job_id JOIN jobs_attempts a ON a.id = s.attempt_id
     WHERE s.state <> 'ended' AND (%(tenant)s::bigint IS NULL OR j.tenant_id = %(tenant)s) ORDER BY j.id, s.rank
"""
# Of nodes_node as n: a lost node counts as capacity for this long, since it may come back any moment; after that, what
# only it could hold can never run (A42). By when the loss was noted, not by the last message: after an outage of the
# control plane every node has been silent for as long as the outage took.
IS_CAPACITY = """n.removed_at IS NULL AND (n.state <> 'lost' OR EXISTS (
    SELECT 1 FROM nodes_incidents lost WHERE lost.node_id = n.id AND lost.device_id IS NULL AND lost.kind = 'node_lost'
       AND lost.until IS NULL AND lost.since > now() - make_interval(secs => %(capacity_seconds)s)))"""
_NODES = f"""
    SELECT id, name, state = 'online', intent = 'open', cpu_cores, memory_mb,
           -- The labels that jobs with an image require (protocol.jobs.runtime_label).
           (CASE WHEN runtimes = '{{}}' THEN labels || admin_labels
                 ELSE labels || admin_labels || '{{"container runtime": "yes"}}'
                             || (SELECT jsonb_object_agg('container runtime ' || name, 'yes')
                                   FROM jsonb_object_keys(runtimes) AS name) END)::text, taints::text
      FROM nodes_all n WHERE {IS_CAPACITY} ORDER BY id
"""
# Who was moved off a hot device must not come back to it, nor anybody else come, before it has cooled.
IS_LEFT = """EXISTS (
    SELECT 1 FROM nodes_incidents hot JOIN nodes_incidents moved
        ON moved.device_id = hot.device_id AND moved.kind = 'moved' AND moved.since >= hot.since
     WHERE hot.device_id = d.id AND hot.until IS NULL)"""
_DEVICES = f"""
    SELECT d.node_id, d.id, d.model, d.memory_mb, d.health IN ('ok', 'hot'), d.held_whole > 0, d.held_mb,
           d.health = 'hot', d.is_slowed OR d.health = 'hot' AND {IS_LEFT},
           CASE WHEN r.read_at > now() - interval '10 seconds'
                THEN floor(r.utilisation_percent / 10.0)::float8 / 10 END,
           d.numa_node, d.nvlink_island
      FROM nodes_devices d LEFT JOIN nodes_readings r ON r.device_id = d.id AND d.held_mb > 0
     ORDER BY d.node_id, d.index, d.id
"""


class PendingJob(NamedTuple):
    """A pending job as it was read: the row's version, what the engine may know, and what the commit compares with. Of
    an array: its next element."""

    version: int
    job: Job
    attempt: int
    reason: str
    evidence: str
    array_id: int | None


class CommitBasis:
    """The policy of that moment, and what the commit compares with: `waiting`, by the ids of jobs and of arrays, and
    `arrays`. `waits`: reasons that the engine need not find. `evidence_is_due`: whether reasons of which only the
    evidence changed are to be rewritten this time."""

    __slots__ = ("arrays", "evidence_is_due", "now", "policy", "waiting", "waits")

    def __init__(self, now: float, waiting: dict[int, PendingJob], policy: Policy, arrays: Sequence[OpenArray]) -> None:
        self.now = now
        self.waiting = waiting
        self.policy = policy
        self.arrays = arrays
        self.waits: tuple[PendingGroup, ...] = ()
        self.evidence_is_due = True


_known: dict[int, PendingJob] = {}


def load(*, is_whole: bool = False, held: Sequence[int] = ()) -> tuple[Snapshot, CommitBasis]:
    """One consistent view: all queries see the same moment, which is also the plan's `now`.

    `is_whole`: the cluster even if nobody waits, and of arrays as many elements as people may ask about. `held`: jobs
    to be seen as if they were released and depended on none. Not for two threads at once."""
    global _known
    is_own_transaction = not connection.in_atomic_block
    with transaction.atomic():
        if is_own_transaction:
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        [(now,)] = rows("SELECT extract(epoch FROM now())::float8")
        _known = _waiting(_known)
        opened = arrays.opened()
        heads = {one.job.id: one for one in _these([array.id for array in opened if array.waiting])}
        seen = CommitBasis(now, {**_known, **heads} if heads else _known, policy(), opened)
        if not (seen.waiting or is_whole):
            # Nobody asks, so nothing more need be known; claims that are left over are dropped by the commit.
            return Snapshot((), (), (), (), claims=load_nominations()), seen
        held_now = running()
        found = nodes(held_now)
        shown = _shown(opened, heads, now, None if is_whole else found)
        seen.waits = shown.waits
        jobs = (*[one.job for id, one in _known.items() if id not in shown.hidden], *shown.jobs)
        known = {job.id for job in jobs} if held else set()
        snapshot = Snapshot(
            jobs=(*jobs, *[one.job for one in _these([id for id in held if id not in known])]),
            running=held_now,
            nodes=found,
            tenants=load_tenants(seen.policy),
            reserved_job_id=_promised(),
            claims=load_nominations(),
            mix=recent_mix(),
            behind=shown.behind,
        )
    return require_unix_users(snapshot), seen


def _shown(
    opened: Sequence[OpenArray], heads: dict[int, PendingJob], now: float, found: Sequence[Node] | None
) -> ArrayView:
    """`found`: the nodes that elements could start on; None: as many are shown as people may ask about."""
    again: dict[int, list[Job]] = {}
    for one in _known.values() if opened else ():
        if one.array_id is not None:
            again.setdefault(one.array_id, []).append(one.job)
    number = max(len(heads), 1)
    each = MAX_ASKED_ABOUT // number + 1 if found is None else max(arrays.MAX_SHOWN // number, arrays.MIN_SHOWN)
    jobs = {id: one.job for id, one in heads.items()}
    return arrays.shown(opened, jobs, again, now, arrays.elements_worth_planning(found, each))


def _promised() -> int | None:
    """The job that the cycle before, whichever worker ran it, promised devices to."""
    last = rows("SELECT reserved_job_id FROM scheduling_cycle ORDER BY id DESC LIMIT 1")
    return last[0][0] if last else None


def _waiting(known: dict[int, PendingJob]) -> dict[int, PendingJob]:
    """The pending jobs, those of `known` that are unchanged taken from there."""
    if not known:
        return {waiting.job.id: waiting for waiting in _read(_PENDING)}
    versions = dict(rows(_VERSIONS))
    waiting = {
        job_id: known[job_id]
        for job_id, version in versions.items()
        if job_id in known and known[job_id].version == version
    }
    for one in _these([job_id for job_id in versions if job_id not in waiting]):
        waiting[one.job.id] = one
    return waiting


def _these(job_ids: Sequence[int]) -> Iterator[PendingJob]:
    return _read(_THESE, columns([(job_id,) for job_id in job_ids], 1)) if job_ids else iter(())


def _read(sql: str, params: Sequence[Any] = ()) -> Iterator[PendingJob]:
    for version, attempt, reason, evidence, array_id, job_id, tenant_id, user_id, priority, *shape in rows(sql, params):
        *shape, queued_at, eligible_at, limit, predicted, is_online = shape
        shape[2] = tuple(shape[2])
        job = Job(
            id=job_id,
            tenant_id=tenant_id,
            request=request_of(*shape),
            priority=priority,
            user_id=user_id,
            queued_at=queued_at,
            eligible_at=eligible_at or 0.0,
            eligible_reason="retry_backoff" if attempt else "not_before",
            max_runtime_seconds=limit,
            predicted_seconds=predicted,
            is_online=is_online,
        )
        yield PendingJob(version, job, attempt, reason, evidence, array_id)


def running(tenant_id: int | None = None) -> tuple[RunningJob, ...]:
    """Return the jobs that hold something, of one tenant or of all."""
    by_job: dict[int, list[dict[str, Any]]] = {}
    for row in query(_RUNNING, {"tenant": tenant_id}):
        by_job.setdefault(row["id"], []).append(row)
    return tuple(_running_job(ranks) for ranks in by_job.values())


def _running_job(found: list[dict[str, Any]]) -> RunningJob:
    first = found[0]
    ranks = tuple(
        RankPlacement(
            rank=row["rank"],
            node_id=row["node_id"],
            cpu_milli=row["rank_cpu"],
            memory_mb=row["rank_memory"],
            holds=tuple(DeviceHold(device, memory) for device, memory in row["holds"] or ()),
            apart=row["apart"],
        )
        for row in found
    )
    return RunningJob(
        job_id=first["id"],
        tenant_id=first["tenant_id"],
        request=request_of(
            first["gpu_count"], first["gpu_memory_mb"], tuple(first["gpu_models"]), first["shared"], first["cpu_milli"],
            first["memory_mb"], first["gang_scheduling"], first["ranks"], first["selector"], first["topology"],
            first["apart"], first["affinity"], first["tolerations"],
        ),
        ranks=ranks,
        started_at=first["started_at"],
        ends_by=_ends_by(first),
        priority=first["priority"],
        preemptible=first["preemptible"],
        user_id=first["user_id"],
        is_online=first["is_online"],
        grace_seconds=first["grace_seconds"],
        saved_at=first["saved_at"],
        is_stopping=first["is_stopping"],
        stopping_for=first["stopping_for"],
        waited_seconds=max(first["started_at"] - first["queued_at"], 0.0),
    )  # fmt: skip


def _ends_by(row: dict[str, Any]) -> float | None:
    """At its time limit, or when it has been told to stop and its grace is over."""
    ends: list[float] = []
    if row["max_runtime_seconds"] is not None:
        ends.append(row["started_at"] + row["max_runtime_seconds"])
    if row["stopping_since"] is not None:
        ends.append(row["stopping_since"] + row["grace_seconds"])
    return min(ends, default=None)


def capacity_seconds() -> float:
    """How long a lost node counts as capacity: the parameter of IS_CAPACITY."""
    return settings.ENV.lost_node_capacity_seconds


def nodes(running: tuple[RunningJob, ...] = ()) -> tuple[Node, ...]:
    """All nodes, with what `running` leaves free of their CPU and memory."""
    cpu_used: dict[int, int] = {}
    memory_used: dict[int, int] = {}
    for job in running:
        for rank in job.ranks:
            cpu_used[rank.node_id] = cpu_used.get(rank.node_id, 0) + rank.cpu_milli
            memory_used[rank.node_id] = memory_used.get(rank.node_id, 0) + rank.memory_mb
    devices: dict[int, list[Device]] = {}
    for node_id, *device in rows(_DEVICES):
        devices.setdefault(node_id, []).append(Device(*device))
    return tuple(
        Node(
            id=node_id,
            name=name,
            cpu_milli=cores * 1000,
            memory_mb=memory_mb,
            cpu_milli_free=cores * 1000 - cpu_used.get(node_id, 0),
            memory_mb_free=memory_mb - memory_used.get(node_id, 0),
            labels=msgspec.json.decode(labels),
            is_open=is_open,
            is_online=is_online,
            devices=tuple(devices.get(node_id, ())),
            taints=_taints(taints) if taints != "[]" else (),
        )
        for node_id, name, is_online, is_open, cores, memory_mb, labels, taints in rows(
            _NODES, {"capacity_seconds": capacity_seconds()}
        )
    )


def _taints(text: str) -> tuple[Taint, ...]:
    found = msgspec.json.decode(text, type=list[protocol.Taint])
    return tuple(sorted(Taint(taint.key, taint.value, str(taint.effect)) for taint in found))
