"""Load the jobs that hold resources for the engine's snapshot."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import columns, prepared_rows
from gpusched.lib.hooks import hook
from scheduling.cycle.eras import Era
from scheduling.cycle.request_shapes import request_of
from scheduling.engine.model import DeviceHold, RankPlacement, RunningJob

# Most running jobs are unchanged since the last cycle. Of each block of job ids only a hash of the row versions is
# read, and the jobs of the blocks with another hash. What a rank holds never changes while it lives, and its job is in
# one of these states, so the hash changes with everything that _RUNNING reads.
_BLOCK = 16
_DIGESTS = f"""
    SELECT block, bit_xor(hash), bool_or(is_spare) FROM (
        SELECT job_id / {_BLOCK} AS block, hashint8extended(id, row_version * 4) AS hash, false AS is_spare
          FROM nodes_ranks WHERE state <> 'ended'
         UNION ALL
        SELECT id / {_BLOCK}, hashint8extended(id, row_version * 4 + 1), false
          FROM jobs_all WHERE state IN ('scheduled', 'running', 'stopping')
         UNION ALL
        SELECT job_id / {_BLOCK}, hashint8extended(id, row_version * 4 + 2), false
          FROM jobs_attempts WHERE ended_at IS NULL
         UNION ALL
        SELECT job_id / {_BLOCK}, 0, true FROM ({{spare}}) i) parts
     GROUP BY block ORDER BY block
"""
_RUNNING_OF = """
    SELECT DISTINCT s.job_id FROM nodes_ranks s JOIN jobs_all j ON j.id = s.job_id
     WHERE s.state <> 'ended' AND j.tenant_id = %s
"""
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
           (SELECT json_agg(json_build_array(l.device_id, l.memory_mb) ORDER BY l.device_id)::text
              FROM nodes_allocations l WHERE l.assignment_id = s.id) AS holds
      FROM nodes_ranks s JOIN jobs_all j ON j.id = s.job_id JOIN jobs_attempts a ON a.id = s.attempt_id
      LEFT JOIN ({spare}) i ON i.job_id = j.id
     WHERE s.state <> 'ended' AND s.job_id = ANY(%(ids)s::bigint[]) ORDER BY j.id, s.rank
"""


class _Block(NamedTuple):
    """`digest` None: of jobs that must be read again each time."""

    digest: int | None
    jobs: tuple[RunningJob, ...]


_blocks: Cache[Era, dict[int, _Block]] = Cache()


class _RunningRow(NamedTuple):
    """A rank of a running job as read: the columns of _RUNNING."""

    id: int
    tenant_id: int
    priority: int
    gpu_count: int
    gpu_memory_mb: int | None
    gpu_models: list[str]
    shared: bool
    cpu_milli: int
    memory_mb: int
    gang_scheduling: bool
    ranks: int | None
    selector: str
    topology: str
    affinity: str
    tolerations: str
    apart: str
    max_runtime_seconds: int | None
    preemptible: bool
    user_id: int
    is_online: bool
    grace_seconds: int
    is_stopping: bool
    stopping_for: int | None
    stopping_since: float | None
    started_at: float
    saved_at: float | None
    queued_at: float
    rank: int
    node_id: int
    rank_cpu: int
    rank_memory: int
    holds: str | None


def running(era: Era) -> tuple[RunningJob, ...]:
    """Load the jobs that hold resources, by id. `era`: the present one."""
    known = _blocks.last(era, {})
    blocks: dict[int, _Block] = {}
    changed: list[int] = []
    for number, digest, is_spare in prepared_rows(_DIGESTS.format(spare=hook("spare_jobs"))):
        # What a spare job would lose depends on the time as well.
        is_same = not is_spare and number in known and known[number].digest == digest
        blocks[number] = known[number] if is_same else _Block(None if is_spare else digest, ())
        if not is_same:
            changed.append(number)
    for job in _read([id for number in changed for id in range(number * _BLOCK, (number + 1) * _BLOCK)]):
        block = blocks[job.job_id // _BLOCK]
        blocks[job.job_id // _BLOCK] = block._replace(jobs=(*block.jobs, job))
    _blocks.put(era, blocks)
    return tuple([job for block in blocks.values() for job in block.jobs])


def running_of(tenant_id: int) -> list[RunningJob]:
    """Load the jobs of a tenant that hold resources."""
    return _read([job_id for (job_id,) in prepared_rows(_RUNNING_OF, [tenant_id])])


def _read(job_ids: Sequence[int]) -> list[RunningJob]:
    """Load those of these jobs that hold resources."""
    if not job_ids:
        return []
    by_job: dict[int, list[tuple[Any, ...]]] = {}
    ids = columns([(id,) for id in job_ids], 1)[0]
    for row in prepared_rows(_RUNNING.format(spare=hook("spare_jobs")), {"ids": ids}):
        by_job.setdefault(row[0], []).append(row)
    return [_running_job(ranks) for ranks in by_job.values()]


def _running_job(ranks: list[tuple[Any, ...]]) -> RunningJob:
    rows = [_RunningRow._make(row) for row in ranks]
    first = rows[0]
    return RunningJob(
        job_id=first.id,
        tenant_id=first.tenant_id,
        request=request_of(
            first.gpu_count, first.gpu_memory_mb, tuple(first.gpu_models), first.shared, first.cpu_milli,
            first.memory_mb, first.gang_scheduling, first.ranks, first.selector, first.topology, first.apart,
            first.affinity, first.tolerations,
        ),
        ranks=tuple([_rank_placement(row) for row in rows]),
        started_at=first.started_at,
        ends_by=_ends_by(first),
        priority=first.priority,
        preemptible=first.preemptible,
        user_id=first.user_id,
        is_online=first.is_online,
        grace_seconds=first.grace_seconds,
        saved_at=first.saved_at,
        is_stopping=first.is_stopping,
        stopping_for=first.stopping_for,
        waited_seconds=max(first.started_at - first.queued_at, 0.0),
    )  # fmt: skip


def _rank_placement(row: _RunningRow) -> RankPlacement:
    holds = msgspec.json.decode(row.holds, type=list[tuple[int, int | None]]) if row.holds else ()
    return RankPlacement(
        rank=row.rank,
        node_id=row.node_id,
        cpu_milli=row.rank_cpu,
        memory_mb=row.rank_memory,
        holds=tuple([DeviceHold(device, memory) for device, memory in holds]),
        apart=row.apart,
    )


def _ends_by(row: _RunningRow) -> float | None:
    """Return the latest end of a job: its time limit, or the end of its grace period if it is stopping."""
    ends: list[float] = []
    if row.max_runtime_seconds is not None:
        ends.append(row.started_at + row.max_runtime_seconds)
    if row.stopping_since is not None:
        ends.append(row.stopping_since + row.grace_seconds)
    return min(ends, default=None)
