"""Positions of waiting jobs among those of all tenants, by priority and then by age.

The scheduler serves jobs in another order, by guarantees, shares and fit, which would take a plan for each list."""

from collections.abc import Collection

from gpusched.lib.db.sql import prepared, query
from jobs.listing.counts import WAITS, WEIGHT

ORDER = "j.priority DESC, j.submitted_at, j.id"
# A held job is ahead of no other: it starts only after its release.
_JOBS = f"CASE WHEN j.state <> 'held' THEN {WEIGHT} ELSE 0 END"
_GPUS = f"{_JOBS} * j.gpu_count::bigint"
# Neither sorts nor adds up the jobs behind the last requested one.
_POSITIONS = f"""
    SELECT id, before::bigint + 1 AS place, gpus_ahead::bigint FROM (
        SELECT j.id, sum({_JOBS}) OVER queue - {_JOBS} AS before, sum({_GPUS}) OVER queue - {_GPUS} AS gpus_ahead
          FROM jobs_job j,
               (SELECT j.priority, j.submitted_at, j.id FROM jobs_job j WHERE j.id = ANY(%(ids)s)
                 ORDER BY j.priority, j.submitted_at DESC, j.id DESC LIMIT 1) last
         WHERE {WAITS} AND (-j.priority, j.submitted_at, j.id) <= (-last.priority, last.submitted_at, last.id)
        WINDOW queue AS (ORDER BY {ORDER} ROWS UNBOUNDED PRECEDING)) placed
     WHERE id = ANY(%(ids)s)
"""
# The same for one job, without sorting: a sum over all that are ahead.
_AHEAD = f"""
    SELECT coalesce(sum({_JOBS}), 0)::bigint AS jobs, coalesce(sum({_GPUS}), 0)::bigint AS gpus
      FROM jobs_job j, jobs_job me
     WHERE me.id = %s AND {WAITS} AND (-j.priority, j.submitted_at, j.id) < (-me.priority, me.submitted_at, me.id)
"""


def jobs_ahead(job_id: int) -> dict[str, int]:
    """Return the number of waiting jobs of all tenants ahead of a job, and the GPUs that they request."""
    [row] = query(_AHEAD, [job_id])
    return {"jobs": row["jobs"], "gpus": row["gpus"]}


def queue_positions(job_ids: Collection[int]) -> dict[int, tuple[int, int]]:
    """Return {job: (position from 1, GPUs that the jobs before it request)} of the waiting ones. An array counts for
    its waiting elements. A held job has the position that it would have after its release."""
    rows = prepared(_POSITIONS, {"ids": sorted(job_ids)}) if job_ids else []
    return {row["id"]: (row["place"], row["gpus_ahead"]) for row in rows}
