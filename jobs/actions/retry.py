"""Has jobs that have ended wait for another attempt: single ones, and elements of arrays."""

from collections.abc import Sequence
from typing import Any

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import events
from gpusched.lib.db.sql import query
from gpusched.protocol.job_actions import RETRIABLE_STATES
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import FINAL
from jobs.lifecycle import dependencies


def retry(which: str, params: Sequence[Any], states: Sequence[str], actor: str) -> list[int]:
    """Those of the jobs that ended in one of `states` are pending again, with their queue time, all their retries and
    the time before which they may not start; gives their ids. `which`: a condition in SQL."""
    rows = query(
        f"""WITH moved AS (
                UPDATE jobs_job SET state = 'pending', reason = '{Pending.SCHEDULER_BEHIND}', evidence = '{{}}',
                       reason_since = now(), ended_at = NULL, started_at = NULL, exit_code = NULL, signal = NULL,
                       retries_used = 0, eligible_at = not_before
                 WHERE {which} AND state = ANY(%s) RETURNING id, attempt)
            INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)
            SELECT id, clock_timestamp(), 'retried', attempt, %s, '{{}}' FROM moved RETURNING job_id""",
        [*params, list(states), actor],
    )
    return [row["job_id"] for row in rows]


def require_retriable(job: dict[str, Any]) -> None:
    """409 for a job that has not ended, or completed: by its own id none of these is run again."""
    job_id, state = job["id"], job["state"]
    if state not in RETRIABLE_STATES:
        step = "submit it again" if state in FINAL else "requeue it" if job["stop_reason"] else "see its state"
        rule = "only a job that failed, was cancelled or was preempted can be retried"
        raise Problem(409, "wrong_state", f"{rule}; job {job_id} is {state}", next_step=step)


def retry_one(job: dict[str, Any], actor: str) -> str:
    """For a job that is locked, and no array. 409 as above; 422 for one that can still not start, since a job that it
    depends on ended otherwise."""
    require_retriable(job)
    job_id = job["id"]
    retry("id = %s", [job_id], RETRIABLE_STATES, actor)
    dependencies.decide_again(job_id, job["tenant_id"])
    events.changed("jobs", [job_id])
    return f"job {job_id} waits for another attempt"
