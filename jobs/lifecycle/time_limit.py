"""Changes the time limit of a job, or of an array with its elements: one conditional write, and word to the agents."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import as_json, query, retry_atomic
from gpusched.protocol.states import FINAL, JobState
from jobs.events.record import insert_sql
from tenants.auth.identity import Identity


@dataclass(frozen=True)
class TimeLimitState:
    """A job as far as its time limit is concerned, in seconds. `limit` None: it has none. `base`: what it was when the
    attempt started, that a member's extensions count from. `elapsed`: since the attempt started; None: it has not.

    Of an array `live` are those of its elements that are placed and have its limit, `base` is the least of theirs and
    `elapsed` the most; of another job it is the job itself, if it is placed."""

    job_id: int
    tenant_id: int
    state: str
    attempt: int
    limit: int | None
    base: int | None
    started_at: datetime | None
    elapsed: float | None
    live: tuple[int, ...]
    is_array: bool


_JOB = "SELECT id, tenant_id, user_id, state, attempt, max_runtime_seconds, array_count FROM jobs_job WHERE id = %s"
# Elements whose limit was changed by itself keep it, whatever becomes of the array's.
_LIVE = """
    SELECT j.id, j.max_runtime_seconds, CASE WHEN j.state = 'running' THEN j.started_at END AS started_at,
           CASE WHEN j.state = 'running'
                THEN extract(epoch FROM clock_timestamp() - j.started_at)::float8 END AS elapsed,
           (SELECT e.data FROM jobs_jobevent e
             WHERE e.job_id = j.id AND e.kind = 'limit_changed' AND e.attempt = j.attempt
             ORDER BY e.id LIMIT 1) AS first_change
      FROM jobs_job j JOIN jobs_job a ON a.id = %s
     WHERE (j.id = a.id AND a.array_count IS NULL
            OR j.array_id = a.id AND j.max_runtime_seconds IS NOT DISTINCT FROM a.max_runtime_seconds)
       AND j.state IN ('scheduled', 'running')
     ORDER BY j.id
"""


def load_for_change(job_id: int, identity: Identity) -> TimeLimitState:
    """The job, of somebody who may act on it. 404, 403, and 409 when its limit means nothing any more."""
    rows = query(_JOB, [job_id])
    if not rows:
        raise not_found(f"job {job_id}")
    [row] = rows
    identity.require(identity.role_for(row["user_id"]), row["tenant_id"], f"job {job_id}")
    if row["state"] in FINAL or row["state"] == JobState.STOPPING:
        told = f"only a waiting or running job has a time limit to change; job {job_id} is {row['state']}"
        raise Problem(409, "wrong_state", told, next_step="see its state")
    live = query(_LIVE, [job_id])
    is_array = row["array_count"] is not None
    bases = [original_limit(one) for one in live]
    return TimeLimitState(
        job_id, row["tenant_id"], row["state"], row["attempt"], row["max_runtime_seconds"],
        base=min((base for base in bases if base is not None), default=None) if live else row["max_runtime_seconds"],
        started_at=live[0]["started_at"] if live and not is_array else None,
        elapsed=max((one["elapsed"] for one in live if one["elapsed"] is not None), default=None),
        live=tuple(one["id"] for one in live), is_array=is_array,
    )  # fmt: skip


def original_limit(job: dict[str, Any]) -> int | None:
    """The limit of a job before its `first_change`, in seconds: the data of that event, None if there was none."""
    first: int | None = (job["first_change"] or {}).get("from_seconds", job["max_runtime_seconds"])
    return first


_CHANGEABLE = "('pending', 'held', 'scheduled', 'running')"
_LOCK = f"SELECT id FROM jobs_job WHERE array_id = %s AND state IN {_CHANGEABLE} ORDER BY id FOR NO KEY UPDATE"
_LIMIT_CHANGED = insert_sql(
    "'limit_changed'",
    "moved",
    actor="%s",
    via="%s",
    data="%s::jsonb || CASE WHEN array_id = %s THEN jsonb_build_object('array', array_id) ELSE '{}' END",
)
_CHANGE = f"""
    WITH moved AS (
        UPDATE jobs_job SET max_runtime_seconds = %s, limit_version = limit_version + 1
         WHERE (id = %s AND attempt = %s AND state = ANY(%s) OR array_id = %s AND state IN {_CHANGEABLE})
           AND max_runtime_seconds IS NOT DISTINCT FROM %s
        RETURNING id, attempt, array_id)
    {_LIMIT_CHANGED} RETURNING job_id
"""


def change(job: TimeLimitState, seconds: int, who: Identity, evidence: dict[str, Any]) -> None:
    """Sets the limit of a job that is still as it was seen, and rings for its agents; 409 if it is not. Of an array
    also that of each element that has not ended and has the array's."""
    retry_atomic(lambda: _change(job, seconds, who, evidence))


def _change(job: TimeLimitState, seconds: int, who: Identity, evidence: dict[str, Any]) -> None:
    data = as_json({"from_seconds": job.limit, "to_seconds": seconds, **evidence})
    array_id, states = None, [job.state]
    if job.is_array:  # it may begin meanwhile; while it is locked, no element becomes a job
        array_id, states = job.job_id, [JobState.PENDING, JobState.HELD, JobState.RUNNING]
        query("SELECT id FROM jobs_job WHERE id = %s FOR NO KEY UPDATE", [array_id])
        query(_LOCK, [array_id])
    seen = [seconds, job.job_id, job.attempt, states, array_id, job.limit]
    changed = [row["job_id"] for row in query(_CHANGE, [*seen, who.username, who.via, data, array_id])]
    if job.job_id not in changed:
        told = f"job {job.job_id} was changed in this moment"
        raise Problem(409, "changed_meanwhile", told, next_step="look at it, and try again")
    events.changed("jobs", changed)
    events.changed("stops", changed)
    wake.request_cycle()
