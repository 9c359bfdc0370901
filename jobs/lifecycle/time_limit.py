"""Change the time limit of a job, or of an array and its elements, by one conditional write, and notify the agents."""

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
    """A job's time limit, in seconds. `limit` None: it has none. `base`: the limit at the start of the attempt, from
    which members' extensions count. `elapsed`: since the attempt started; None before that.

    `live` is the job itself if it is placed. For an array it is the placed elements that have the array's limit, with
    the lowest `base` and the highest `elapsed` of them."""

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
# Elements whose own limit was changed keep it when the array's changes.
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
    """Load a job that the caller may act on. 404 or 403 otherwise; 409 if the job ends or has ended."""
    rows = query(_JOB, [job_id])
    if not rows:
        raise not_found(f"job {job_id}")
    [row] = rows
    identity.require(identity.role_for(row["user_id"]), row["tenant_id"], f"job {job_id}")
    if row["state"] in FINAL or row["state"] == JobState.STOPPING:
        message = f"only a waiting or running job has a time limit to change; job {job_id} is {row['state']}"
        raise Problem(409, "wrong_state", message, next_step="see its state")
    live = query(_LIVE, [job_id])
    is_array = row["array_count"] is not None
    bases = [original_limit(job) for job in live]
    return TimeLimitState(
        job_id, row["tenant_id"], row["state"], row["attempt"], row["max_runtime_seconds"],
        base=min((base for base in bases if base is not None), default=None) if live else row["max_runtime_seconds"],
        started_at=live[0]["started_at"] if live and not is_array else None,
        elapsed=max((job["elapsed"] for job in live if job["elapsed"] is not None), default=None),
        live=tuple(job["id"] for job in live), is_array=is_array,
    )  # fmt: skip


def lock_live(array_id: int) -> tuple[int, ...]:
    """Lock an array, so that no element becomes a job meanwhile. Return its placed elements that have its limit."""
    query(_LOCK_ARRAY, [array_id])
    return tuple(row["id"] for row in query(_LIVE, [array_id]))


def original_limit(job: dict[str, Any]) -> int | None:
    """Return a job's limit in seconds before its `first_change`: that event's data, None if there is none."""
    first: int | None = (job["first_change"] or {}).get("from_seconds", job["max_runtime_seconds"])
    return first


_CHANGEABLE = "('pending', 'held', 'scheduled', 'running')"
_LOCK_ARRAY = "SELECT id FROM jobs_job WHERE id = %s FOR NO KEY UPDATE"
_LOCK_ELEMENTS = f"SELECT id FROM jobs_job WHERE array_id = %s AND state IN {_CHANGEABLE} ORDER BY id FOR NO KEY UPDATE"
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


def change(job: TimeLimitState, seconds: int, identity: Identity, evidence: dict[str, Any]) -> None:
    """Set the limit of a job that has not changed since it was loaded, and wake its agents; 409 if it has changed. For
    an array, also set that of its unfinished elements with the same limit."""
    retry_atomic(lambda: _change(job, seconds, identity, evidence))


def _change(job: TimeLimitState, seconds: int, identity: Identity, evidence: dict[str, Any]) -> None:
    data = as_json({"from_seconds": job.limit, "to_seconds": seconds, **evidence})
    array_id, states = None, [job.state]
    if job.is_array:  # it may start meanwhile; while it is locked, no element becomes a job
        array_id, states = job.job_id, [JobState.PENDING, JobState.HELD, JobState.RUNNING]
        query(_LOCK_ARRAY, [array_id])
        query(_LOCK_ELEMENTS, [array_id])
    params = [seconds, job.job_id, job.attempt, states, array_id, job.limit]
    changed = [row["job_id"] for row in query(_CHANGE, [*params, identity.username, identity.via, data, array_id])]
    if job.job_id not in changed:
        message = f"job {job.job_id} was changed at this moment"
        raise Problem(409, "changed_meanwhile", message, next_step="check its state and try again")
    events.changed("jobs", changed)
    events.changed("stops", changed)
    wake.request_cycle()
