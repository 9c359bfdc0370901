"""Changes the time limit of a job: one conditional write with its event, and the word to its agents."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from gpusched.lib import events, wake
from gpusched.lib.problems import Problem, not_found
from gpusched.lib.sql import as_json, query
from gpusched.protocol.states import FINAL, WAITING, JobState, Role
from tenants.permissions import Identity


@dataclass(frozen=True)
class Limited:
    """A job as far as its time limit is concerned, in seconds. `limit` None: it has none. `base`: what it was when the
    attempt started, that a member's extensions count from. `elapsed`: since the attempt started; None: it has not."""

    job_id: int
    tenant_id: int
    state: str
    attempt: int
    limit: int | None
    base: int | None
    started_at: datetime | None
    elapsed: float | None

    @property
    def is_waiting(self) -> bool:
        return self.state in WAITING


_JOB = """
    SELECT j.id, j.tenant_id, j.user_id, j.state, j.attempt, j.max_runtime_seconds,
           CASE WHEN j.state = 'running' THEN j.started_at END AS started_at,
           extract(epoch FROM clock_timestamp() - j.started_at)::float8 AS elapsed,
           (SELECT e.data FROM jobs_jobevent e
             WHERE e.job_id = j.id AND e.kind = 'limit_changed' AND e.attempt = j.attempt
             ORDER BY e.id LIMIT 1) AS first_change
      FROM jobs_job j WHERE j.id = %s
"""


def limited(job_id: int, identity: Identity) -> Limited:
    """The job, of somebody who may act on it. 404, 403, and 409 when its limit means nothing any more."""
    rows = query(_JOB, [job_id])
    if not rows or not identity.sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    [row] = rows
    own = row["user_id"] == identity.user_id
    identity.require(Role.MEMBER if own else Role.OWNER, row["tenant_id"], f"job {job_id}")
    if row["state"] in FINAL or row["state"] == JobState.STOPPING:
        told = f"only a waiting or running job has a time limit to change; job {job_id} is {row['state']}"
        raise Problem(409, "wrong_state", told, next_step="see its state")
    is_live = row["state"] not in WAITING
    first = row["first_change"] if is_live else None
    return Limited(
        job_id, row["tenant_id"], row["state"], row["attempt"], row["max_runtime_seconds"],
        base=first["from_seconds"] if first else row["max_runtime_seconds"],
        started_at=row["started_at"], elapsed=row["elapsed"] if row["started_at"] else None,
    )  # fmt: skip


_CHANGE = """
    WITH moved AS (
        UPDATE jobs_job SET max_runtime_seconds = %s, limit_version = limit_version + 1
         WHERE id = %s AND state = %s AND attempt = %s AND max_runtime_seconds IS NOT DISTINCT FROM %s
        RETURNING id, attempt)
    INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, via, data)
    SELECT id, clock_timestamp(), 'limit_changed', attempt, %s, %s, %s::jsonb FROM moved RETURNING job_id
"""


def change(job: Limited, seconds: int, who: Identity, evidence: dict[str, Any]) -> None:
    """Sets the limit of a job that is still as it was seen, and rings for its agents. 409 if it is not."""
    data = {"from_seconds": job.limit, "to_seconds": seconds, **evidence}
    seen = [seconds, job.job_id, job.state, job.attempt, job.limit]
    with transaction.atomic():
        if not query(_CHANGE, [*seen, who.username, who.via, as_json(data)]):
            told = f"job {job.job_id} was changed in this moment"
            raise Problem(409, "changed_meanwhile", told, next_step="look at it, and try again")
        events.changed("jobs", [job.job_id])
        events.changed("stops", [job.job_id])
        wake.request_cycle()
