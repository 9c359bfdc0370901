"""What would be lost if a job's processes were stopped now: what it holds, and for how long it has run."""

from typing import Any

from gpusched.lib.problems import invalid
from gpusched.lib.sql import query
from gpusched.protocol.jobs import FieldError

# GPU-hours from which the job's id must be typed before its processes are stopped.
LARGE_GPU_HOURS = 24.0
# Of an array its live elements; the array's own row is no process.
_LOSS = """
    SELECT count(*) AS jobs, coalesce(sum(gpu_count), 0)::int AS gpus, coalesce(max(ran), 0) AS seconds,
           coalesce(sum(gpu_count * ran), 0) / 3600 AS gpu_hours
      FROM (SELECT gpu_count, extract(epoch FROM clock_timestamp() - started_at)::float8 AS ran FROM jobs_job
             WHERE (id = %s AND array_count IS NULL OR array_id = %s)
               AND state IN ('scheduled', 'running', 'stopping')) live
"""


def loss_of(job_id: int) -> dict[str, Any]:
    """`jobs gpus seconds` (of the longest) `gpu_hours is_large`."""
    [row] = query(_LOSS, [job_id, job_id])
    return {**row, "is_large": row["gpu_hours"] >= LARGE_GPU_HOURS}


def require_typed(job_id: int, typed: str) -> None:
    """400 unless the id was typed, where much would be lost."""
    if typed.strip() != str(job_id) and loss_of(job_id)["is_large"]:
        raise invalid([FieldError("typed", "required", f"type {job_id}, the job's id, to stop what has run so much")])
