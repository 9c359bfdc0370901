"""What can be done to jobs: submit, cancel, hold, release, requeue, retry; each one transaction, then answered."""

import hashlib
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db import IntegrityError, transaction

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import atomically, query
from gpusched.lib.request_id import concerns
from gpusched.protocol import reasons
from gpusched.protocol.job_request import FieldError, JobRequest, problems
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState
from jobs.actions import array_actions
from jobs.actions import retry as retrying
from jobs.lifecycle import dependencies
from jobs.lifecycle import states as transitions
from jobs.listing import representation
from jobs.listing.counts import WAITS
from jobs.submit import (
    admission,
    queue_limits,
    refusals,
    replays,
)
from jobs.submit.insertion import insert
from jobs.submit.job_row import row_of, tenant_of
from jobs.submit.queue_limits import Incoming, Load
from tenants import secrets
from tenants.auth.identity import Identity
from tenants.tenancy import archived


@dataclass(frozen=True)
class Submitted:
    """The answer to a submit, as JSON bytes; `is_replay` when the same key had been used before; `warning`: the limits
    of the queue that are nearly reached, as the header Queue-Warning has them."""

    answer: bytes
    is_replay: bool
    warning: str = ""


def simulate(request: JobRequest, identity: Identity) -> dict[str, Any]:
    """What would become of a request if it were submitted now (docs/rest.md), or the refusals of a submit. Nothing is
    written."""
    row, tenant_id, tenant = _understood(request, identity)
    with refusals.paced(tenant_id):
        _require_possible(request, tenant_id, tenant, identity)
        queue_limits.require(_incoming(request, row), is_exact=False)
    _wait_for_dependencies(request, row)
    found = admission.preview(request, row, identity.visible_tenants())
    return {"tenant": tenant, **(_simulated_wait(row) if row["open_dependencies"] else found)}


def submit(request: JobRequest, identity: Identity, key: str = "", raw: bytes = b"") -> Submitted:
    """Makes a pending job. With an idempotency key, N submits make one job and get one answer; the same key with
    another body, or for another tenant (tokens may be limited to one), is a 409. 400 for a bad request, 422 for one
    that can never run, 429 when the queue is full."""
    try:
        row, tenant_id, tenant = _understood(request, identity)
    except Problem:
        # Since the first time the tenant may have been archived, or got another name.
        first = replays.used(identity, key) if key else []
        for job in first:
            request_hash = _request_hash(job["tenant_id"], raw)
            if identity.sees(job["tenant_id"]) and job["request_hash"] == request_hash:
                return _replay(identity, key, request_hash)
        raise
    request_hash = _request_hash(tenant_id, raw) if key else ""
    try:
        with refusals.paced(tenant_id):
            try:
                _require_possible(request, tenant_id, tenant, identity)
                job_id, submitted_at = queue_limits.insert_within(
                    _incoming(request, row), lambda counted: _insert(request, row, identity, key, request_hash, counted)
                )
            except Problem:
                # The cluster may have changed since the first time: a repeated request is answered as then, at once.
                if key and replays.used(identity, key):
                    return _replay(identity, key, request_hash)
                raise
    except IntegrityError:
        if not key:
            raise
        if replays.forget_old(identity, key):
            return submit(request, identity, key, raw)
        return _replay(identity, key, request_hash)
    answer = _answer(row, job_id, submitted_at, tenant, identity.username)
    return Submitted(answer, False, queue_limits.warning(tenant_id, identity.user_id))


def _request_hash(tenant_id: int, raw: bytes) -> str:
    return hashlib.sha256(b"%d\n%s" % (tenant_id, raw)).hexdigest()


def _understood(request: JobRequest, identity: Identity) -> tuple[dict[str, Any], int, str]:
    """The row that the request would make, and its tenant's id and name; refuses what the request alone shows wrong."""
    if found := [*problems(request), *_bulk_only(request)]:
        raise invalid(found)
    tenant_id, tenant = tenant_of(request, identity)
    return row_of(request, tenant_id, identity), tenant_id, tenant


def _incoming(request: JobRequest, row: dict[str, Any]) -> Incoming:
    """Return what a new job counts as. Its dependencies are looked up without a lock, and again when it is written."""
    foreseen = dict(row)
    _wait_for_dependencies(request, foreseen)
    return Incoming(row["tenant_id"], row["user_id"], queue_limits.load_of(foreseen))


def _wait_for_dependencies(request: JobRequest, row: dict[str, Any]) -> None:
    if request.depends_on:
        states = dependencies.states_of([one.job for one in request.dependencies], is_locked=False)
        dependencies.wait_for(row, dependencies.undecided(request.dependencies, row["tenant_id"], states))


def _insert(
    request: JobRequest, row: dict[str, Any], identity: Identity, key: str, request_hash: str, generation: int | None
) -> tuple[int, datetime]:
    """One statement, and needs no transaction, unless the job depends on others."""
    if not request.depends_on:
        return insert(row, identity, key, request_hash, generation)
    with transaction.atomic():
        archived.lock_open([row["tenant_id"]])  # before any job, as archiving does: otherwise the two could deadlock
        states = dependencies.states_of([one.job for one in request.dependencies])
        undecided = dependencies.undecided(request.dependencies, row["tenant_id"], states)
        dependencies.wait_for(row, undecided)
        job_id, submitted_at = insert(row, identity, key, request_hash, generation)
        dependencies.write([dependencies.Edge(job_id, int(one.job), one.kind) for one in undecided])
    return job_id, submitted_at


def _simulated_wait(row: dict[str, Any]) -> dict[str, Any]:
    """What is foreseen of a job that waits for others to end: no more than that."""
    said = reasons.sentence(row["reason"], row["evidence"])
    step = reasons.next_step(row["reason"], row["evidence"])
    reason = {"code": row["reason"], "sentence": said, "next_step": step, "evidence": row["evidence"]}
    blank = {"starts_now": False, "placement": [], "estimate": None, "victims": None, "alternatives": []}
    return {**blank, "sentence": reasons.would_wait(said), "reason": reason}


def _require_possible(request: JobRequest, tenant_id: int, tenant: str, identity: Identity) -> None:
    secrets.require_known(request.secrets, tenant_id, tenant)
    admission.require_possible(request, tenant_id, identity)


def _bulk_only(request: JobRequest) -> list[FieldError]:
    """What has a meaning only among the jobs of one bulk."""
    names = [one.job for one in request.dependencies if isinstance(one.job, str)]
    found = [FieldError("depends_on", "unknown_ref", f"'{name[:64]}' is no id of a job") for name in names]
    return found + ([FieldError("ref", "conflict", "has a meaning only in jobs/bulk")] if request.ref else [])


def _answer(row: dict[str, Any], job_id: int, submitted_at: datetime, tenant: str, user: str) -> bytes:
    """The job as it was when it was submitted: a replay gives the same bytes however far the job has come."""
    job = representation.fresh(row, job_id, submitted_at, tenant, user)
    message = f"job {job_id} is in the queue of tenant {tenant}"
    concerns([job_id])
    return msgspec.json.encode({"job_id": job_id, "status": "submitted", "message": message, "job": job})


def _replay(identity: Identity, key: str, request_hash: str) -> Submitted:
    """What the first submit with this key was answered; 409 if that was for another request."""
    job = replays.first(identity, key, request_hash)
    return Submitted(_answer(job, job["id"], job["submitted_at"], job["tenant"], job["user"]), True)


# --- actions on one job -----------------------------------------------------------------------------------------------


def cancel(job_id: int, identity: Identity, part: str | None = None, if_state: Collection[str] | None = None) -> str:
    """Ends a job: at once if it waits, else its processes are stopped first. Harmless when repeated. `part`: of an
    array only these elements, like 3-7,9. `if_state`: 409 if the job lives in another state than these by now."""

    def act(job: dict[str, Any]) -> str:
        if if_state is not None and job["state"] not in (*if_state, *FINAL):
            now = f"job {job_id} is {job['state']} by now"
            raise Problem(409, "wrong_state", now, next_step="cancel it once more to stop its processes")
        by = {"by": identity.username}
        if job["array_count"] is not None:
            return array_actions.cancel(job, part, identity.username)
        array_actions.require_none(job, part)
        if job["state"] in WAITING:
            transitions.cancel_waiting([job_id], by, identity.username)
            return f"job {job_id} is cancelled"
        if job["state"] == JobState.STOPPING:
            transitions.override_stop(job_id, EndReason.CANCELLED, by, identity.username)
        elif job["state"] in LIVE:
            transitions.stop([job_id], EndReason.CANCELLED, by, identity.username)
        else:
            return f"job {job_id} had already ended: {job['state']}"
        return f"job {job_id} is being stopped"

    return _act(job_id, identity, act)


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
    transitions.cancel_waiting([row["id"] for row in single if row["state"] in WAITING], by, actor)
    transitions.stop([row["id"] for row in single if row["state"] in LIVE], EndReason.CANCELLED, by, actor)
    for row in single:
        if row["state"] == JobState.STOPPING:
            transitions.override_stop(row["id"], EndReason.CANCELLED, by, actor)
    events.changed("jobs", [row["id"] for row in rows])
    waited = sum(row["state"] in WAITING for row in rows)
    return waited, len(rows) - waited


def hold(job_id: int, identity: Identity) -> str:
    """Keeps a waiting job from starting until it is released; a hold by an admin can only be released by one."""

    def act(job: dict[str, Any]) -> str:
        owner = identity.user_id == job["user_id"] or job["tenant_id"] in identity.roles
        reason = Pending.HELD_BY_USER if owner else Pending.HELD_BY_ADMIN
        if job["state"] == JobState.HELD and job["reason"] in (reason, Pending.HELD_BY_ADMIN):
            return f"job {job_id} is held"
        joins_deferred = reason == Pending.HELD_BY_USER and queue_limits.load_of(job).queued
        with _room_for(job, Load(deferred=1) if joins_deferred else None):
            if job["array_count"] is not None:
                return array_actions.hold(job, reason, identity.username)
            if job["state"] not in (JobState.PENDING, JobState.HELD):
                raise _wrong_state(job, "only a waiting job can be held")
            transitions.hold([job_id], reason, identity.username)
        return f"job {job_id} is held"

    return _act(job_id, identity, act, joins_queue=True)


def release(job_id: int, identity: Identity) -> str:
    """Lets a held job wait for its turn again, from its original queue time."""

    def act(job: dict[str, Any]) -> str:
        if job["state"] == JobState.HELD:
            joins_queued = queue_limits.load_of(job).queued and not identity.can_administer
            holds = [Pending.HELD_BY_USER, *([Pending.HELD_BY_ADMIN] if identity.can_administer else [])]
            with _room_for(job, Load(queued=1) if joins_queued else None):
                if job["array_count"] is not None:
                    is_released = array_actions.release(job, holds, identity.username)
                else:
                    is_released = bool(transitions.release([job_id], holds, identity.username))
                if not is_released:
                    step = "ask an admin to release it"
                    raise Problem(403, "not_permitted", "an admin holds this job", next_step=step)
        elif job["state"] != JobState.PENDING:
            raise _wrong_state(job, "only a held job can be released")
        return f"job {job_id} waits for its turn"

    return _act(job_id, identity, act, joins_queue=True)


def requeue(job_id: int, identity: Identity) -> str:
    """Stops a live job and puts it back to where it stood in the queue."""

    def act(job: dict[str, Any]) -> str:
        if job["array_count"] is not None:
            step = "requeue live elements by their own ids, or retry those that ended"
            raise Problem(409, "wrong_state", f"job {job_id} is an array, which never runs itself", next_step=step)
        if job["state"] in (JobState.SCHEDULED, JobState.RUNNING):
            by = {"by": identity.username}
            transitions.stop([job_id], EndReason.REQUEUED, by, identity.username)
        elif job["state"] != JobState.PENDING and job["stop_reason"] != EndReason.REQUEUED:
            raise _wrong_state(job, "only a live job can be requeued")
        return f"job {job_id} goes back to the queue"

    return _act(job_id, identity, act)


def retry(job_id: int, identity: Identity, part: str = array_actions.FAILED) -> str:
    """Has a job that failed, was cancelled or was preempted run again, by another attempt; or elements of an array:
    `failed`, or numbers like 3-7,9 of those that have ended. An element is retried as one of its array."""
    element: int | None = None

    def act(job: dict[str, Any]) -> str:
        archived.lock_open([job["tenant_id"]])
        with _room_for(job, None if job["waits"] else queue_limits.load_of(job)):
            if job["array_count"] is not None:
                if element is not None:
                    retrying.require_retriable(locked(element, identity))
                return array_actions.retry(job, part, identity.username)
            array_actions.require_none(job, None if part == array_actions.FAILED else part)
            return retrying.retry_one(job, identity.username)

    sql = "SELECT tenant_id, array_id, array_index FROM jobs_job WHERE id = %s AND array_id IS NOT NULL"
    if part == array_actions.FAILED and (found := query(sql, [job_id])) and identity.sees(found[0]["tenant_id"]):
        element, job_id, part = job_id, found[0]["array_id"], str(found[0]["array_index"])
    return _act(job_id, identity, act, joins_queue=True)


@contextmanager
def _room_for(job: dict[str, Any], load: Load | None) -> Iterator[None]:
    """Raise 429 if the queue has no room for `load`, but only after what is done inside: a job in the wrong state is
    refused as such whatever is queued. The transaction undoes what was done. None: the job joins no part of the queue.
    """
    refusal: Problem | None = None
    try:
        if load is not None:
            queue_limits.require(Incoming(job["tenant_id"], job["user_id"], load))
    except Problem as problem:
        refusal = problem
    yield
    if refusal is not None:
        raise refusal


def _act(job_id: int, identity: Identity, act: Callable[[dict[str, Any]], str], *, joins_queue: bool = False) -> str:
    """`joins_queue`: the job may count against another limit of the queue afterwards."""

    def work() -> str:
        if joins_queue:
            queue_limits.lock_of_job(job_id)
        message = act(locked(job_id, identity))
        events.changed("jobs", [job_id])
        wake.request_cycle()
        return message

    return atomically(work)


def locked(job_id: int, identity: Identity) -> dict[str, Any]:
    """The job's row, locked, of somebody who may act on it: 404 or 403 for others. In a transaction, whose events say
    by which way it was done."""
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


def new_key() -> str:
    """An idempotency key for a page's form, made when the form is shown."""
    return uuid.uuid4().hex
