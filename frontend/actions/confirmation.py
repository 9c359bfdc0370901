"""Confirmation before jobs are stopped: the work that would be lost, and what the user must type."""

from collections.abc import Collection
from typing import Any

from frontend.ui.formatting import duration, number
from gpusched.lib.api.problems import invalid
from gpusched.lib.db.sql import query
from gpusched.protocol.job_request import FieldError

# From this many GPU-hours the user must type the job's id before its processes are stopped.
LARGE_GPU_HOURS = 24.0
# Above this number of jobs the user must type their number, however long they have run.
CONFIRM_COUNT_ABOVE = 20
# For an array, its live elements: the array's own row has no process.
_LOSS = """
    SELECT count(*) AS jobs, count(array_id) AS elements, coalesce(sum(gpu_count), 0)::int AS gpus,
           coalesce(max(ran), 0) AS seconds, coalesce(sum(gpu_count * ran), 0) / 3600 AS gpu_hours
      FROM (SELECT gpu_count, array_id, extract(epoch FROM clock_timestamp() - started_at)::float8 AS ran FROM jobs_all
             WHERE (id = ANY(%s) AND array_count IS NULL OR array_id = ANY(%s))
               AND state IN ('scheduled', 'running', 'stopping')) live
"""


def loss_of(*job_ids: int) -> dict[str, Any]:
    """Return `jobs`, `elements` (jobs that are array elements), `gpus`, `seconds` (the longest), `gpu_hours`,
    `is_large`."""
    [row] = query(_LOSS, [list(job_ids), list(job_ids)])
    return {**row, "is_large": row["gpu_hours"] >= LARGE_GPU_HOURS}


def required_confirmation(job_ids: Collection[int], loss: dict[str, Any]) -> str:
    """Return the text to type before a stop: the number of jobs, or the id of one; "" if little would be lost."""
    if not loss["is_large"] and (len(job_ids) <= CONFIRM_COUNT_ABOVE or not loss["jobs"]):
        return ""
    return str(len(job_ids) if len(job_ids) > 1 else min(job_ids))


def require_confirmation(job_ids: Collection[int], typed: str) -> None:
    """Raise 400 unless `typed` is the required text."""
    expected = required_confirmation(job_ids, loss_of(*job_ids))
    if expected not in ("", typed.strip()):
        label = "the number of jobs" if len(job_ids) > 1 else "the job's id"
        raise invalid([FieldError("typed", "required", f"type {expected}, {label}, to confirm the stop")])


def loss_sentence(loss: dict[str, Any]) -> str:
    """Describe the loss of several jobs."""
    if not loss["jobs"]:
        return "None of them is running."
    jobs, gpus = loss["jobs"], loss["gpus"]
    counted = ((jobs - loss["elements"], "job"), (loss["elements"], "element"))
    subject = " and ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counted if count)
    runs = "runs" if jobs == 1 else "run"
    gpus_phrase = f" on {gpus} GPU{'s' * (gpus != 1)}" if gpus else ""
    duration_phrase = (
        f", the longest for {duration(loss['seconds'])}" if jobs > 1 else f", for {duration(loss['seconds'])}"
    )
    maximum = f": at most {number(loss['gpu_hours'])} GPU-hours" if loss["is_large"] else ""
    whose = "Its" if jobs == 1 else "Their"
    effect = f"{whose} processes are stopped, and unsaved work is lost{maximum}."
    return f"{subject} {runs}{gpus_phrase}{duration_phrase}. {effect}"
