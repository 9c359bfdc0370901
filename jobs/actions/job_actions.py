"""Actions on one job: cancel, hold, release, requeue and retry, each in one transaction."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import query, retry_atomic
from gpusched.protocol.job_actions import RETRIABLE_STATES
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState
from jobs.actions import array_actions
from jobs.lifecycle import dependencies, states
from jobs.listing.counts import WAITS
from jobs.submit import queue_limits
from jobs.submit.queue_limits import Incoming, Load
from tenants.auth.identity import Identity
from tenants.tenancy import archived


def cancel(job_id: int, identity: Identity, part: str | None = None, if_state: Collection[str] | None = None) -> str:
    """Cancel a waiting job, or stop the processes of a live one. Harmless when repeated. `part`: only these elements of
    an array, like 3-7,9. `if_state`: 409 if the unfinished job is in another state by now."""

    def action(job: dict[str, Any]) -> str:
        if if_state is not None and job["state"] not in (*if_state, *FINAL):
            now = f"job {job_id} is {job['state']} by now"
            raise Problem(409, "wrong_state", now, next_step="cancel it once more to stop its processes")
        by = {"by": identity.username}
        if job["array_count"] is not None:
            return array_actions.cancel(job, part, identity.username)
        array_actions.require_array(job, part)
        if job["state"] in WAITING:
            states.cancel_waiting([job_id], by, identity.username)
            return f"job {job_id} is cancelled"
        if job["state"] == JobState.STOPPING:
            states.override_stop(job_id, EndReason.CANCELLED, by, identity.username)
        elif job["state"] in LIVE:
            states.stop([job_id], EndReason.CANCELLED, by, identity.username)
        else:
            return f"job {job_id} had already ended: {job['state']}"
        return f"job {job_id} is being stopped"

    return _perform(job_id, identity, action)


def cancel_all(tenant_id: int, identity: Identity) -> tuple[int, int]:
    """Cancel all jobs of a tenant that have not ended. Return how many waited, and how many are being stopped; an array
    counts as one. In a transaction."""
    by, actor = {"by": identity.username}, identity.username
    query("SELECT set_config(%s, %s, true)", [log.VIA, identity.via])
    rows = query(
        "SELECT id, state, array_count FROM jobs_job WHERE tenant_id = %s AND array_id IS NULL AND state <> ALL(%s)"
        " ORDER BY id FOR NO KEY UPDATE",
        [tenant_id, list(FINAL)],
    )
    for row in rows:
        if row["array_count"] is not None:
            array_actions.cancel(row, None, actor)
    single = [row for row in rows if row["array_count"] is None]
    states.cancel_waiting([row["id"] for row in single if row["state"] in WAITING], by, actor)
    states.stop([row["id"] for row in single if row["state"] in LIVE], EndReason.CANCELLED, by, actor)
    for row in single:
        if row["state"] == JobState.STOPPING:
            states.override_stop(row["id"], EndReason.CANCELLED, by, actor)
    events.changed("jobs", [row["id"] for row in rows])
    waited = sum(row["state"] in WAITING for row in rows)
    return waited, len(rows) - waited


def hold(job_id: int, identity: Identity) -> str:
    """Keep a waiting job from starting until it is released. Only an admin can release an admin's hold."""

    def action(job: dict[str, Any]) -> str:
        owner = identity.user_id == job["user_id"] or job["tenant_id"] in identity.roles
        reason = Pending.HELD_BY_USER if owner else Pending.HELD_BY_ADMIN
        if job["state"] == JobState.HELD and job["reason"] in (reason, Pending.HELD_BY_ADMIN):
            return f"job {job_id} is held"
        joins_deferred = reason == Pending.HELD_BY_USER and queue_limits.load_of(job).queued
        with _within_queue_limits(job, Load(deferred=1) if joins_deferred else None):
            events.changed("jobs", dependencies.waiting_for(job_id))
            if job["array_count"] is not None:
                return array_actions.hold(job, reason, identity.username)
            if job["state"] not in (JobState.PENDING, JobState.HELD):
                raise _wrong_state(job, "only a waiting job can be held")
            states.hold([job_id], reason, identity.username)
        return f"job {job_id} is held"

    return _perform(job_id, identity, action, joins_queue=True)


def release(job_id: int, identity: Identity) -> str:
    """Let a held job wait again, with its original queue time."""

    def action(job: dict[str, Any]) -> str:
        if job["state"] == JobState.HELD:
            events.changed("jobs", dependencies.waiting_for(job_id))
            joins_queued = queue_limits.load_of(job).queued and not identity.can_administer
            holds = [Pending.HELD_BY_USER, *([Pending.HELD_BY_ADMIN] if identity.can_administer else [])]
            with _within_queue_limits(job, Load(queued=1) if joins_queued else None):
                if job["array_count"] is not None:
                    is_released = array_actions.release(job, holds, identity.username)
                else:
                    is_released = bool(states.release([job_id], holds, identity.username))
                if not is_released:
                    step = "ask an admin to release it"
                    raise Problem(403, "not_permitted", "an admin holds this job", next_step=step)
        elif job["state"] != JobState.PENDING:
            raise _wrong_state(job, "only a held job can be released")
        return f"job {job_id} waits for its turn"

    return _perform(job_id, identity, action, joins_queue=True)


def requeue(job_id: int, identity: Identity) -> str:
    """Stop a live job and return it to the queue with its original queue time."""

    def action(job: dict[str, Any]) -> str:
        array_actions.require_no_array(job_id, job, "requeue live elements by their own ids, or retry those that ended")
        if job["state"] in (JobState.SCHEDULED, JobState.RUNNING):
            by = {"by": identity.username}
            states.stop([job_id], EndReason.REQUEUED, by, identity.username)
        elif job["state"] != JobState.PENDING and job["stop_reason"] != EndReason.REQUEUED:
            raise _wrong_state(job, "only a live job can be requeued")
        return f"job {job_id} goes back to the queue"

    return _perform(job_id, identity, action)


def retry(job_id: int, identity: Identity, part: str = array_actions.ALL_FAILED) -> str:
    """Rerun a failed, cancelled or preempted job as a new attempt, or elements of an array: `failed`, or numbers like
    3-7,9 of ended ones. An element is retried as part of its array."""
    element: int | None = None

    def action(job: dict[str, Any]) -> str:
        archived.lock_open([job["tenant_id"]])
        with _within_queue_limits(job, None if job["waits"] else queue_limits.load_of(job)):
            if job["array_count"] is not None:
                if element is not None:
                    _require_retriable(lock(element, identity))
                return array_actions.retry(job, part, identity.username)
            array_actions.require_array(job, None if part == array_actions.ALL_FAILED else part)
            return _retry_one(job, identity.username)

    sql = "SELECT tenant_id, array_id, array_index FROM jobs_job WHERE id = %s AND array_id IS NOT NULL"
    if part == array_actions.ALL_FAILED and (rows := query(sql, [job_id])) and identity.sees(rows[0]["tenant_id"]):
        element, job_id, part = job_id, rows[0]["array_id"], str(rows[0]["array_index"])
    return _perform(job_id, identity, action, joins_queue=True)


def _require_retriable(job: dict[str, Any]) -> None:
    """Raise 409 for a job that has not ended, or completed: by its own id neither is retried."""
    job_id, state = job["id"], job["state"]
    if state not in RETRIABLE_STATES:
        step = "submit it again" if state in FINAL else "requeue it" if job["stop_reason"] else "see its state"
        rule = "only a job that failed, was cancelled or was preempted can be retried"
        raise Problem(409, "wrong_state", f"{rule}; job {job_id} is {state}", next_step=step)


def _retry_one(job: dict[str, Any], actor: str) -> str:
    """Retry a locked job that is no array. 409 as above; 422 if a job that it depends on ended in the wrong state."""
    _require_retriable(job)
    job_id = job["id"]
    states.retry(job_id, RETRIABLE_STATES, actor)
    dependencies.reinstate(job_id, job["tenant_id"])
    events.changed("jobs", [job_id])
    return f"job {job_id} waits for another attempt"


@contextmanager
def _within_queue_limits(job: dict[str, Any], load: Load | None) -> Iterator[None]:
    """Raise 429 if `load` exceeds a limit of the queue, but only after the body: a job in the wrong state gets its 409
    whatever is queued. The transaction undoes the body. None: the job joins no part of the queue."""
    refusal: Problem | None = None
    try:
        if load is not None:
            queue_limits.require(Incoming(job["tenant_id"], job["user_id"], load))
    except Problem as problem:
        refusal = problem
    yield
    if refusal is not None:
        raise refusal


def _perform(
    job_id: int, identity: Identity, action: Callable[[dict[str, Any]], str], *, joins_queue: bool = False
) -> str:
    """Lock a job and run an action on it. `joins_queue`: it may count against another limit of the queue afterwards."""

    def work() -> str:
        if joins_queue:
            queue_limits.lock_of_job(job_id)
        message = action(lock(job_id, identity))
        events.changed("jobs", [job_id])
        wake.request_cycle()
        return message

    return retry_atomic(work)


def lock(job_id: int, identity: Identity) -> dict[str, Any]:
    """Lock a job that the caller may act on and return its row; 404 or 403 otherwise. Set the channel that the events
    of the transaction record."""
    rows = query(
        "SELECT id, tenant_id, user_id, state, reason, stop_reason, array_count, not_before, open_dependencies,"
        f"      {WAITS} AS waits, set_config(%s, %s, true) FROM jobs_job j WHERE id = %s FOR NO KEY UPDATE",
        [log.VIA, identity.via, job_id],
    )
    if not rows:
        raise not_found(f"job {job_id}")
    identity.require(identity.role_for(rows[0]["user_id"]), rows[0]["tenant_id"], f"job {job_id}")
    return rows[0]


def _wrong_state(job: dict[str, Any], rule: str) -> Problem:
    return Problem(409, "wrong_state", f"{rule}; job {job['id']} is {job['state']}", next_step="see its state")
