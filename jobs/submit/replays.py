"""Earlier submits with the same idempotency key: the job as it was when it was submitted."""

from typing import Any

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.reasons import Pending
from jobs.lifecycle.time_limit import original_limit
from jobs.submit import idempotency
from tenants.auth.identity import Identity

# Housekeeping deletes expired keys, too, but this must not depend on it.
_DROP_EXPIRED = f"""
    DELETE FROM jobs_idempotencykey WHERE user_id = %s AND key = %s AND created_at <= {idempotency.EXPIRED_BEFORE}
"""
_USED = f"""
    SELECT k.request_hash, j.*, t.name AS tenant, u.username AS "user",
           (SELECT e.data FROM jobs_jobevent e WHERE e.job_id = j.id AND e.kind = 'submitted') AS waited_for,
           (SELECT e.data FROM jobs_jobevent e WHERE e.job_id = j.id AND e.kind = 'limit_changed'
             ORDER BY e.id LIMIT 1) AS first_change
      FROM jobs_idempotencykey k JOIN jobs_job j ON j.id = k.job_id
      JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id
     WHERE k.user_id = %s AND k.key = %s AND k.created_at > {idempotency.EXPIRED_BEFORE}
"""


def drop_expired(identity: Identity, key: str) -> None:
    """Delete the key if it has expired."""
    execute(_DROP_EXPIRED, [identity.user_id, key])


def find_by_key(identity: Identity, key: str) -> list[dict[str, Any]]:
    """Return the job that was submitted with this key, if any."""
    return query(_USED, [identity.user_id, key])


def as_submitted(job: dict[str, Any], request_hash: str) -> dict[str, Any]:
    """Return that job as it was when submitted; 409 if the request was another one. Of the fields in the answer to a
    submit, only the time limit and an amount of GPU memory that the server chose may have changed since."""
    if job["request_hash"] != request_hash:
        raise idempotency.key_reused()
    job["evidence"] = job["waited_for"]
    job["reason"] = Pending.DEPENDENCY if job["waited_for"] else Pending.SCHEDULER_BEHIND
    job["max_runtime_seconds"] = original_limit(job)
    if job["gpu_memory_auto"]:
        job["gpu_memory_mb"] = job["gpu_memory_auto"]["gpu_memory_mb"]
    return job
