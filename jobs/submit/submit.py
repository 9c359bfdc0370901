"""Submit a job, or simulate that: check the request, then write the job in one transaction and answer."""

import hashlib
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db import IntegrityError, transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.hooks import hook
from gpusched.lib.request_id import log_job_ids
from gpusched.protocol import reasons
from gpusched.protocol.job_request import FieldError, JobRequest, validate
from jobs.lifecycle import dependencies
from jobs.listing import representation
from jobs.submit import admission, queue_limits, refusals, replays
from jobs.submit.job_row import insert_job, job_row, resolve_tenant
from jobs.submit.queue_limits import Incoming
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
    row, tenant_id, tenant = _validated(request, identity)
    with refusals.paced(tenant_id):
        _require_possible(request, tenant_id, tenant, identity)
        queue_limits.require(_incoming(request, row), is_exact=False)
    _mark_waiting(request, row)
    found = hook("submit_simulation")(request, row, identity.visible_tenants())
    return {"tenant": tenant, **(_dependency_answer(row) if row["open_dependencies"] else found)}


def submit(request: JobRequest, identity: Identity, key: str = "", raw: bytes = b"") -> Submitted:
    """Makes a pending job. With an idempotency key, N submits make one job and get one answer; the same key with
    another body, or for another tenant (tokens may be limited to one), is a 409. 400 for a bad request, 422 for one
    that can never run, 429 when the queue is full."""
    try:
        row, tenant_id, tenant = _validated(request, identity)
    except Problem:
        # Since the first time the tenant may have been archived, or got another name.
        first = replays.find_by_key(identity, key) if key else []
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
                if key and replays.find_by_key(identity, key):
                    return _replay(identity, key, request_hash)
                raise
    except IntegrityError:
        if not key:
            raise
        if replays.drop_expired(identity, key):
            return submit(request, identity, key, raw)
        return _replay(identity, key, request_hash)
    answer = _response(row, job_id, submitted_at, tenant, identity.username)
    return Submitted(answer, False, queue_limits.warning(tenant_id, identity.user_id))


def _request_hash(tenant_id: int, raw: bytes) -> str:
    return hashlib.sha256(b"%d\n%s" % (tenant_id, raw)).hexdigest()


def _validated(request: JobRequest, identity: Identity) -> tuple[dict[str, Any], int, str]:
    """The row that the request would make, and its tenant's id and name; refuses what the request alone shows wrong."""
    if found := [*validate(request), *_bulk_only_errors(request)]:
        raise invalid(found)
    tenant_id, tenant = resolve_tenant(request, identity)
    return job_row(request, tenant_id, identity), tenant_id, tenant


def _incoming(request: JobRequest, row: dict[str, Any]) -> Incoming:
    """Return what a new job counts as. Its dependencies are looked up without a lock, and again when it is written."""
    foreseen = dict(row)
    _mark_waiting(request, foreseen)
    return Incoming(row["tenant_id"], row["user_id"], queue_limits.load_of(foreseen))


def _mark_waiting(request: JobRequest, row: dict[str, Any]) -> None:
    if request.depends_on:
        states = dependencies.states_of([one.job for one in request.dependencies], is_locked=False)
        dependencies.mark_waiting(row, dependencies.undecided(request.dependencies, row["tenant_id"], states))


def _insert(
    request: JobRequest, row: dict[str, Any], identity: Identity, key: str, request_hash: str, generation: int | None
) -> tuple[int, datetime]:
    """One statement, and needs no transaction, unless the job depends on others."""
    if not request.depends_on:
        return insert_job(row, identity, key, request_hash, generation)
    with transaction.atomic():
        archived.lock_open([row["tenant_id"]])  # before any job, as archiving does: otherwise the two could deadlock
        states = dependencies.states_of([one.job for one in request.dependencies])
        undecided = dependencies.undecided(request.dependencies, row["tenant_id"], states)
        dependencies.mark_waiting(row, undecided)
        job_id, submitted_at = insert_job(row, identity, key, request_hash, generation)
        dependencies.write([dependencies.DependencyEdge(job_id, int(one.job), one.kind) for one in undecided])
    return job_id, submitted_at


def _dependency_answer(row: dict[str, Any]) -> dict[str, Any]:
    """What is foreseen of a job that waits for others to end: no more than that."""
    said = reasons.sentence(row["reason"], row["evidence"])
    step = reasons.next_step(row["reason"], row["evidence"])
    reason = {"code": row["reason"], "sentence": said, "next_step": step, "evidence": row["evidence"]}
    blank = {"starts_now": False, "placement": [], "estimate": None, "victims": None, "alternatives": []}
    return {**blank, "sentence": reasons.would_wait(said), "reason": reason}


def _require_possible(request: JobRequest, tenant_id: int, tenant: str, identity: Identity) -> None:
    secrets.require_known(request.secrets, tenant_id, tenant)
    admission.require_admissible(request, tenant_id, identity)


def _bulk_only_errors(request: JobRequest) -> list[FieldError]:
    """What has a meaning only among the jobs of one bulk."""
    names = [one.job for one in request.dependencies if isinstance(one.job, str)]
    found = [FieldError("depends_on", "unknown_ref", f"'{name[:64]}' is no id of a job") for name in names]
    return found + ([FieldError("ref", "conflict", "has a meaning only in jobs/bulk")] if request.ref else [])


def _response(row: dict[str, Any], job_id: int, submitted_at: datetime, tenant: str, user: str) -> bytes:
    """The job as it was when it was submitted: a replay gives the same bytes however far the job has come."""
    job = representation.represent_new(row, job_id, submitted_at, tenant, user)
    message = f"job {job_id} is in the queue of tenant {tenant}"
    log_job_ids([job_id])
    return msgspec.json.encode({"job_id": job_id, "status": "submitted", "message": message, "job": job})


def _replay(identity: Identity, key: str, request_hash: str) -> Submitted:
    """What the first submit with this key was answered; 409 if that was for another request."""
    job = replays.original_job(identity, key, request_hash)
    return Submitted(_response(job, job["id"], job["submitted_at"], job["tenant"], job["user"]), True)


# --- actions on one job -----------------------------------------------------------------------------------------------


def new_key() -> str:
    """An idempotency key for a page's form, made when the form is shown."""
    return uuid.uuid4().hex
