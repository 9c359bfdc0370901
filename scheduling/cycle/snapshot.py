"""Load the engine's snapshot: everything it needs from the database, read at one moment."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.db import connection, transaction

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import columns, execute, query, rows
from gpusched.lib.hooks import hook
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
from scheduling.history.current import with_predictions
from scheduling.policy import policy
from scheduling.reservations.bookings import load_bookings, mark_inside


def require_unix_users(snapshot: Snapshot) -> Snapshot:
    """Add labels for Unix users that some nodes lack, and require them of their tenants' jobs. Users cannot set labels
    with spaces; reasons show them as they are: no node matches Unix user alice."""
    if not (lacks := missing_users.current()):
        return snapshot
    labels = {tenant: _label(user) for _, tenant, user in lacks}
    lacking = {(node, _label(user)) for node, _, user in lacks}
    jobs = tuple(
        replace(job, request=_requiring(job.request, labels[job.tenant_id])) if job.tenant_id in labels else job
        for job in snapshot.jobs
    )
    nodes = tuple(
        replace(node, labels={**node.labels, **_present_labels(node.id, labels.values(), lacking)})
        for node in snapshot.nodes
    )
    return replace(snapshot, jobs=jobs, nodes=nodes)


def _label(user: str) -> str:
    return f"Unix user {user}" if user else "a Unix user for tenants without unix_user"


def _present_labels(node: int, labels: Iterable[str], lacking: set[tuple[int, str]]) -> dict[str, str]:
    return {label: "yes" for label in labels if (node, label) not in lacking}


@lru_cache(4096)
def _requiring(request: Request, label: str) -> Request:
    return replace(request, node_selector=tuple(sorted((*request.node_selector, (label, "yes")))))


# With more pending jobs than this, a plan takes long, and explanations only use the plan itself.
MAX_ASKED_ABOUT = 20_000
# Most pending jobs are unchanged since the last cycle: of those only the row version is read.
# The engine needs no jobs that wait for other jobs to end.
_IS_PLANNED = "state = 'pending' AND open_dependencies = 0 AND array_count IS NULL"
_VERSIONS = f"SELECT id, row_version FROM jobs_all WHERE {_IS_PLANNED}"
_JOBS = f"""
    SELECT j.row_version, j.attempt, j.reason, j.evidence::text, j.array_id,
           j.id, j.tenant_id, j.user_id, j.priority, {COLUMNS},
           extract(epoch FROM j.submitted_at)::float8, extract(epoch FROM j.eligible_at)::float8,
           j.max_runtime_seconds, j.predicted_seconds, j.workload_class = 'online', j.reservation,
           j.grace_seconds::float8
      FROM jobs_all j WHERE """
_PENDING, _JOBS_BY_ID = f"{_JOBS} {_IS_PLANNED}", f"{_JOBS} j.id = ANY(%s::bigint[])"
# A spare job, such as an idle replica, does no work: it counts as of the lowest priority, and its end loses nothing.
_RUNNING = """
    SELECT j.id, j.tenant_id, CASE WHEN i.job_id IS NULL THEN j.priority ELSE 0 END AS priority, j.gpu_count,
           j.gpu_memory_mb, j.gpu_models, j.gpu_sharing = 'shared' AS shared, j.cpu_milli, j.memory_mb,
           j.gang_scheduling, j.ranks, j.node_selector::text AS selector, j.topology, j.node_affinity::text AS affinity,
           j.tolerations::text AS tolerations,
           CASE WHEN j.anti_affinity = '' THEN '' ELSE j.tenant_id || '/' || j.anti_affinity END AS apart,
           j.max_runtime_seconds, j.preemptible, j.user_id, j.workload_class = 'online' AS is_online, j.grace_seconds,
           j.state = 'stopping' AS is_stopping, (j.stop_evidence->>'by_job')::bigint AS stopping_for,
           extract(epoch FROM CASE WHEN j.state = 'stopping' THEN j.reason_since END)::float8 AS stopping_since,
           extract(epoch FROM coalesce(j.started_at, a.scheduled_at))::float8 AS started_at,
           extract(epoch FROM CASE WHEN i.job_id IS NULL THEN a.saved_at ELSE now() END)::float8 AS saved_at,
           extract(epoch FROM greatest(j.submitted_at, j.eligible_at))::float8 AS queued_at,
           s.rank, s.node_id, s.cpu_milli AS rank_cpu, s.memory_mb AS rank_memory,
           (SELECT json_agg(json_build_array(l.device_id, l.memory_mb) ORDER BY l.device_id)
              FROM nodes_allocations l WHERE l.assignment_id = s.id) AS holds
      FROM nodes_ranks s JOIN jobs_all j ON j.id = s.job_id JOIN jobs_attempts a ON a.id = s.attempt_id
      LEFT JOIN ({spare}) i ON i.job_id = j.id
     WHERE s.state <> 'ended' AND (%(tenant)s::bigint IS NULL OR j.tenant_id = %(tenant)s) ORDER BY j.id, s.rank
"""
# For nodes as n: a lost node counts as capacity for this long, since it may come back any moment; after that, what only
# it could hold can never run (A42). Counted from when the loss was recorded, not from the last message: after an outage
# of the control plane every node has been silent for as long as the outage took.
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
# A hot device that a job was moved off gets no job before it has cooled.
IS_VACATED = """EXISTS (
    SELECT 1 FROM nodes_incidents hot JOIN nodes_incidents moved
        ON moved.device_id = hot.device_id AND moved.kind = 'moved' AND moved.since >= hot.since
     WHERE hot.device_id = d.id AND hot.until IS NULL)"""
_DEVICES = f"""
    SELECT d.node_id, d.id, d.model, d.memory_mb, d.health IN ('ok', 'hot'), d.held_whole > 0, d.held_mb,
           d.health = 'hot', d.is_slowed OR d.health = 'hot' AND {IS_VACATED},
           CASE WHEN r.read_at > now() - interval '10 seconds'
                THEN floor(r.utilisation_percent / 10.0)::float8 / 10 END,
           d.numa_node, d.nvlink_island
      FROM nodes_devices d LEFT JOIN nodes_readings r ON r.device_id = d.id AND d.held_mb > 0
     ORDER BY d.node_id, d.index, d.id
"""


class PendingJob(NamedTuple):
    """A pending job as read: the row version, the engine's job, and the values that the commit compares with. For an
    array: its next element."""

    version: int
    job: Job
    attempt: int
    reason: str
    evidence: str
    array_id: int | None


class CommitBasis:
    """The policy at the time of the snapshot, and the data that the commit compares with: `waiting`, by ids of jobs and
    arrays, and `arrays`. `pending_groups`: reasons found before planning. `evidence_is_due`: rewrite reasons whose
    evidence alone changed."""

    __slots__ = ("arrays", "evidence_is_due", "now", "pending_groups", "policy", "waiting")

    def __init__(self, now: float, waiting: dict[int, PendingJob], policy: Policy, arrays: Sequence[OpenArray]) -> None:
        self.now = now
        self.waiting = waiting
        self.policy = policy
        self.arrays = arrays
        self.pending_groups: tuple[PendingGroup, ...] = ()
        self.evidence_is_due = True


_pending_jobs: Cache[None, dict[int, PendingJob]] = Cache()


def load(*, is_whole: bool = False, released: Sequence[int] = ()) -> tuple[Snapshot, CommitBasis]:
    """Load a consistent snapshot: all queries see the same moment, which is also the plan's `now`.

    `is_whole`: load the cluster even without pending jobs, and as many array elements as explanations cover.
    `released`: jobs to include as if they were not held and had no dependencies."""
    is_own_transaction = not connection.in_atomic_block
    with transaction.atomic():
        if is_own_transaction:
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        [(now,)] = rows("SELECT extract(epoch FROM now())::float8")
        waiting = _pending_jobs.put(None, _waiting(_pending_jobs.last(None, {})))
        opened = arrays.load_open_arrays()
        heads = {pending.job.id: pending for pending in _load_jobs([array.id for array in opened if array.waiting])}
        basis = CommitBasis(now, {**waiting, **heads} if heads else waiting, policy(), opened)
        if not (basis.waiting or is_whole):
            # No job is pending, so nothing else is needed; the commit drops claims that are left.
            return Snapshot((), (), (), (), claims=load_nominations()), basis
        bookings = load_bookings()
        live = mark_inside(running(), bookings)
        free_nodes = nodes(live)
        view = _array_view(opened, waiting, heads, now, None if is_whole else free_nodes)
        basis.pending_groups = view.pending_groups
        jobs = (*[pending.job for id, pending in waiting.items() if id not in view.hidden], *view.jobs)
        pending_ids = {job.id for job in jobs} if released else set()
        snapshot = Snapshot(
            jobs=(*jobs, *[pending.job for pending in _load_jobs([id for id in released if id not in pending_ids])]),
            running=live,
            nodes=free_nodes,
            tenants=load_tenants(basis.policy),
            reserved_job_id=_promised(),
            claims=load_nominations(),
            mix=recent_mix(),
            behind=view.hidden_counts,
            bookings=bookings,
        )
        snapshot = with_predictions(snapshot, now)
    return require_unix_users(snapshot), basis


def _array_view(
    opened: Sequence[OpenArray],
    waiting: dict[int, PendingJob],
    heads: dict[int, PendingJob],
    now: float,
    free_nodes: Sequence[Node] | None,
) -> ArrayView:
    """Return the array elements for the engine. `free_nodes`: nodes to start on; None: all that explanations cover."""
    retried: dict[int, list[Job]] = {}
    for pending in waiting.values() if opened else ():
        if pending.array_id is not None:
            retried.setdefault(pending.array_id, []).append(pending.job)
    number = max(len(heads), 1)
    each = MAX_ASKED_ABOUT // number + 1 if free_nodes is None else max(arrays.MAX_SHOWN // number, arrays.MIN_SHOWN)
    jobs = {id: pending.job for id, pending in heads.items()}
    return arrays.represent(opened, jobs, retried, now, arrays.elements_worth_planning(free_nodes, each))


def _promised() -> int | None:
    """Return the job to which the previous cycle, of whichever worker, promised devices."""
    last = rows("SELECT reserved_job_id FROM scheduling_cycle ORDER BY id DESC LIMIT 1")
    return last[0][0] if last else None


def _waiting(cached: dict[int, PendingJob]) -> dict[int, PendingJob]:
    """Load the pending jobs. Reuse those in `cached` that are unchanged."""
    if not cached:
        return {waiting.job.id: waiting for waiting in _read(_PENDING)}
    versions = dict(rows(_VERSIONS))
    waiting = {
        job_id: cached[job_id]
        for job_id, version in versions.items()
        if job_id in cached and cached[job_id].version == version
    }
    for pending in _load_jobs([job_id for job_id in versions if job_id not in waiting]):
        waiting[pending.job.id] = pending
    return waiting


def _load_jobs(job_ids: Sequence[int]) -> Iterator[PendingJob]:
    return _read(_JOBS_BY_ID, columns([(job_id,) for job_id in job_ids], 1)) if job_ids else iter(())


def _read(sql: str, params: Sequence[Any] = ()) -> Iterator[PendingJob]:
    for version, attempt, reason, evidence, array_id, job_id, tenant_id, user_id, priority, *shape in rows(sql, params):
        *shape, queued_at, eligible_at, limit, predicted, is_online, booking_id, grace_seconds = shape
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
            booking_id=booking_id,
            grace_seconds=grace_seconds,
        )
        yield PendingJob(version, job, attempt, reason, evidence, array_id)


def running(tenant_id: int | None = None) -> tuple[RunningJob, ...]:
    """Load the jobs that hold resources, of one tenant or of all."""
    by_job: dict[int, list[dict[str, Any]]] = {}
    for row in query(_RUNNING.format(spare=hook("spare_jobs")), {"tenant": tenant_id}):
        by_job.setdefault(row["id"], []).append(row)
    return tuple(_running_job(ranks) for ranks in by_job.values())


def _running_job(rows: list[dict[str, Any]]) -> RunningJob:
    first = rows[0]
    ranks = tuple(
        RankPlacement(
            rank=row["rank"],
            node_id=row["node_id"],
            cpu_milli=row["rank_cpu"],
            memory_mb=row["rank_memory"],
            holds=tuple(DeviceHold(device, memory) for device, memory in row["holds"] or ()),
            apart=row["apart"],
        )
        for row in rows
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
    """Return the latest end of a job: its time limit, or the end of its grace period if it is stopping."""
    ends: list[float] = []
    if row["max_runtime_seconds"] is not None:
        ends.append(row["started_at"] + row["max_runtime_seconds"])
    if row["stopping_since"] is not None:
        ends.append(row["stopping_since"] + row["grace_seconds"])
    return min(ends, default=None)


def capacity_seconds() -> float:
    """Return how long a lost node counts as capacity: the parameter of IS_CAPACITY."""
    return settings.ENV.lost_node_capacity_seconds


def nodes(running: tuple[RunningJob, ...] = ()) -> tuple[Node, ...]:
    """Load all nodes, with the CPU and memory that `running` leaves free."""
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
    taints = msgspec.json.decode(text, type=list[protocol.Taint])
    return tuple(sorted(Taint(taint.key, taint.value, str(taint.effect)) for taint in taints))
