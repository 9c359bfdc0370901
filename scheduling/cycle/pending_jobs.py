"""Load the pending jobs for the engine's snapshot."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import columns, prepared_rows
from scheduling.cycle.eras import Era
from scheduling.cycle.request_shapes import COLUMNS, request_of
from scheduling.engine.model import Job

# The engine needs no jobs that wait for other jobs to end.
_IS_PLANNED = "state = 'pending' AND open_dependencies = 0 AND array_count IS NULL"
# Most pending jobs are unchanged since the last cycle. Of each block of ids only a hash of the row versions is read,
# and what has changed in the blocks with another hash.
_BLOCK = 64
_DIGESTS = f"""
    SELECT id / {_BLOCK}, bit_xor(hashint8extended(id, row_version)) FROM jobs_all WHERE {_IS_PLANNED} GROUP BY 1
"""
_VERSIONS = f"SELECT id, row_version FROM jobs_all WHERE {_IS_PLANNED}"
_VERSIONS_OF_BLOCK = f"{_VERSIONS} AND id >= %s AND id < %s"
# If more blocks have changed, the versions of all jobs are read: one statement for each costs more.
_FEW_BLOCKS = 8
_JOBS = f"""
    SELECT j.row_version, j.attempt, j.reason, j.evidence::text, j.array_id,
           j.id, j.tenant_id, j.user_id, j.priority, {COLUMNS},
           extract(epoch FROM j.submitted_at)::float8, extract(epoch FROM j.eligible_at)::float8,
           j.max_runtime_seconds, j.predicted_seconds, j.workload_class = 'online', j.reservation,
           j.grace_seconds::float8
      FROM jobs_all j WHERE """
_ALL_JOBS, _JOBS_BY_ID = f"{_JOBS} {_IS_PLANNED}", f"{_JOBS} j.id = ANY(%s::bigint[])"


@dataclass(frozen=True, eq=False, slots=True)
class ShownReason:
    """The reason of a pending job as stored, the same object for each code and evidence: thousands share a few."""

    code: str
    evidence: str


_shown = lru_cache(maxsize=10_000)(ShownReason)


class PendingJob(NamedTuple):
    """A pending job as read: the row version, the engine's job, and the values that the commit compares with. For an
    array: its next element."""

    version: int
    job: Job
    attempt: int
    shown: ShownReason
    array_id: int | None


class _Known(NamedTuple):
    """The hashes of the blocks, and the jobs in them by id."""

    digests: dict[int, int]
    jobs: dict[int, PendingJob]


_last: Cache[Era, _Known] = Cache()


def pending_jobs(era: Era) -> dict[int, PendingJob]:
    """Load the jobs that may be planned, by id. Unchanged ones are the same objects as before, in the same order.
    `era`: the present one."""
    known = _last.last(era, None)
    digests = dict(prepared_rows(_DIGESTS))
    if known is None:
        # In a transaction of the caller a job may be newer than the hashes, whose blocks are all that the next call
        # compares.
        jobs = {pending.job.id: pending for pending in _read(_ALL_JOBS) if pending.job.id // _BLOCK in digests}
    else:
        changed = {number for number, _ in known.digests.items() ^ digests.items()}
        jobs = _with_changes(known.jobs, changed, changed & digests.keys()) if changed else known.jobs
    _last.put(era, _Known(digests, jobs))
    return jobs


def _with_changes(known: dict[int, PendingJob], changed_blocks: set[int], present: set[int]) -> dict[int, PendingJob]:
    """Return the known jobs with what has changed in these blocks, of which only `present` ones still have jobs."""
    versions = dict(_versions(present)) if present else {}
    jobs = known.copy()
    for number in changed_blocks:
        for job_id in range(number * _BLOCK, (number + 1) * _BLOCK):
            if job_id in jobs and job_id not in versions:
                del jobs[job_id]
    changed = [id for id, version in versions.items() if id not in known or known[id].version != version]
    read = {pending.job.id: pending for pending in jobs_by_id(changed)}
    jobs.update((id, read[id]) for id in changed if id in read)
    return jobs


def _versions(blocks: set[int]) -> list[tuple[int, int]]:
    """Return the ids of the pending jobs of these blocks, with the versions of their rows."""
    if len(blocks) > _FEW_BLOCKS:
        return [row for row in prepared_rows(_VERSIONS) if row[0] // _BLOCK in blocks]
    bounds = [(number * _BLOCK, (number + 1) * _BLOCK) for number in sorted(blocks)]
    return [row for bound in bounds for row in prepared_rows(_VERSIONS_OF_BLOCK, bound)]


def jobs_by_id(job_ids: Sequence[int]) -> Iterator[PendingJob]:
    """Load these jobs, whatever their state."""
    return _read(_JOBS_BY_ID, columns([(job_id,) for job_id in job_ids], 1)) if job_ids else iter(())


def _read(sql: str, params: Sequence[Any] = ()) -> Iterator[PendingJob]:
    for version, attempt, reason, evidence, array_id, job_id, tenant_id, user_id, priority, *shape in prepared_rows(
        sql, params
    ):
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
        yield PendingJob(version, job, attempt, _shown(reason, evidence), array_id)
