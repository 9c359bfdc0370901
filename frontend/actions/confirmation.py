"""What would be lost if a job's processes were stopped now: what it holds, and for how long it has run."""

from collections.abc import Collection
from typing import Any

from frontend.ui.formatting import duration, number
from gpusched.lib.api.problems import invalid
from gpusched.lib.db.sql import query
from gpusched.protocol.job_request import FieldError

# GPU-hours from which the job's id must be typed before its processes are stopped.
LARGE_GPU_HOURS = 24.0
# Of more jobs at once their number must be typed, whatever they have run for.
CONFIRM_COUNT_ABOVE = 20
# Of an array its live elements; the array's own row is no process.
_LOSS = """
    SELECT count(*) AS jobs, count(array_id) AS elements, coalesce(sum(gpu_count), 0)::int AS gpus,
           coalesce(max(ran), 0) AS seconds, coalesce(sum(gpu_count * ran), 0) / 3600 AS gpu_hours
      FROM (SELECT gpu_count, array_id, extract(epoch FROM clock_timestamp() - started_at)::float8 AS ran FROM jobs_all
             WHERE (id = ANY(%s) AND array_count IS NULL OR array_id = ANY(%s))
               AND state IN ('scheduled', 'running', 'stopping')) live
"""


def loss_of(*job_ids: int) -> dict[str, Any]:
    """`jobs elements` (of arrays, among them) `gpus seconds` (of the longest) `gpu_hours is_large`."""
    [row] = query(_LOSS, [list(job_ids), list(job_ids)])
    return {**row, "is_large": row["gpu_hours"] >= LARGE_GPU_HOURS}


def required_confirmation(job_ids: Collection[int], loss: dict[str, Any]) -> str:
    """What must be typed before these are stopped: their number, of one its id; "" where little would be lost."""
    if not loss["is_large"] and (len(job_ids) <= CONFIRM_COUNT_ABOVE or not loss["jobs"]):
        return ""
    return str(len(job_ids) if len(job_ids) > 1 else min(job_ids))


def require_confirmation(job_ids: Collection[int], typed: str) -> None:
    """400 unless what must be typed was, where much would be lost."""
    wanted = required_confirmation(job_ids, loss_of(*job_ids))
    if wanted not in ("", typed.strip()):
        what = "the number of jobs" if len(job_ids) > 1 else "the job's id"
        raise invalid([FieldError("typed", "required", f"type {wanted}, {what}, to confirm the stop")])


def loss_sentence(loss: dict[str, Any]) -> str:
    """The loss of several jobs as a sentence."""
    if not loss["jobs"]:
        return "None of them is running."
    jobs, gpus = loss["jobs"], loss["gpus"]
    counted = ((jobs - loss["elements"], "job"), (loss["elements"], "element"))
    what = " and ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counted if count)
    runs = "runs" if jobs == 1 else "run"
    where = f" on {gpus} GPU{'s' * (gpus != 1)}" if gpus else ""
    since = f", the longest for {duration(loss['seconds'])}" if jobs > 1 else f", for {duration(loss['seconds'])}"
    most = f": at most {number(loss['gpu_hours'])} GPU-hours" if loss["is_large"] else ""
    whose = "Its" if jobs == 1 else "Their"
    return f"{what} {runs}{where}{since}. {whose} processes are stopped, and unsaved work is lost{most}."
