"""Submit a job or simulate a submit: check the request, write the job in one transaction, and answer."""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from django.db import IntegrityError, transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.hooks import hook
from gpusched.lib.request_id import log_job_ids
from gpusched.protocol import reasons
from gpusched.protocol.dependencies import Dependency
from gpusched.protocol.job_request import FieldError, JobRequest, validate
from jobs.lifecycle import dependencies
from jobs.lifecycle.dependencies import DependencyEdge
from jobs.listing import representation
from jobs.submit import admission, auto_memory, queue_limits, refusals, replays
from jobs.submit.job_row import insert_job, job_row, resolve_tenant
from jobs.submit.queue_limits import Incoming
from tenants import buckets, secrets
from tenants.auth.identity import Identity
from tenants.buckets import Room
from tenants.models import BucketUse
from tenants.tenancy import archived


@dataclass(frozen=True)
class Submitted:
    """The answer to a submit, as JSON bytes. `is_replay`: the key had been used before. `warning`: the queue limits
    that are nearly reached, as the header Queue-Warning. `room`: of the buckets that the job took a token from."""

    answer: bytes
    is_replay: bool
    warning: str = ""
    room: Room | None = None


def simulate(request: JobRequest, identity: Identity) -> dict[str, Any]:
    """Predict the outcome of a request if it were submitted now (docs/rest.md), or raise the refusals of a submit.
    Write nothing."""
    request, row, tenant_id, tenant = _validated(request, identity)
    with refusals.paced(tenant_id):
        _require_possible(request, tenant_id, tenant, identity)
        queue_limits.require(_incoming(request, row), is_exact=False)
    _mark_waiting(request, row)
    preview = hook("submit_simulation")(request, row, identity.visible_tenants())
    answer = {"tenant": tenant, "gpu_memory_auto": row["gpu_memory_auto"], **preview}
    return {**answer, **(_dependency_answer(row) if row["open_dependencies"] else {})}


def submit(request: JobRequest, identity: Identity, key: str = "", raw: bytes = b"", tries: int = 3) -> Submitted:
    """Submit a job. With an idempotency key, N submits make one job and get one answer; 409 for the same key with
    another body, or for another tenant (tokens may be limited to one). 400 for a bad request, 422 for one that can
    never run, 429 when the queue is full or a bucket of the tenant is empty."""
    try:
        request, row, tenant_id, tenant = _validated(request, identity)
    except Problem:
        # The tenant may have been archived or renamed since the first submit.
        earlier = replays.find_by_key(identity, key) if key else []
        for job in earlier:
            request_hash = _request_hash(job["tenant_id"], raw)
            if identity.sees(job["tenant_id"]) and job["request_hash"] == request_hash:
                return _replay(job, request_hash)
        raise
    request_hash = _request_hash(tenant_id, raw) if key else ""
    try:
        with refusals.paced(tenant_id):
            try:
                _require_possible(request, tenant_id, tenant, identity)
                job_id, submitted_at, room = queue_limits.insert_within(
                    _incoming(request, row),
                    lambda generation: _insert(request, row, identity, key, request_hash, generation),
                )
            except Problem:
                # The cluster may have changed since the first submit: a repeated request gets the same answer, at once.
                for job in replays.find_by_key(identity, key) if key else []:
                    return _replay(job, request_hash)
                raise
    except IntegrityError:
        for job in replays.find_by_key(identity, key) if key else []:
            return _replay(job, request_hash)
        if not key or tries == 0:
            raise
        # The key has expired. If another submit has dropped it, the next try waits for the job of that one.
        replays.drop_expired(identity, key)
        return submit(request, identity, key, raw, tries - 1)
    answer = _response(row, job_id, submitted_at, tenant, identity.username)
    return Submitted(answer, False, queue_limits.warning(tenant_id, identity.user_id), room)


def _request_hash(tenant_id: int, raw: bytes) -> str:
    return hashlib.sha256(b"%d\n%s" % (tenant_id, raw)).hexdigest()


def _validated(request: JobRequest, identity: Identity) -> tuple[JobRequest, dict[str, Any], int, str]:
    """Return the request with its amount of GPU memory, its row, and its tenant's id and name; refuse a request that is
    invalid in itself."""
    if errors := [*validate(request), *_bulk_only_errors(request)]:
        raise invalid(errors)
    tenant_id, tenant = resolve_tenant(request, identity)
    request, choice = auto_memory.resolve(request, tenant_id, identity)
    return request, job_row(request, tenant_id, identity, choice), tenant_id, tenant


def _incoming(request: JobRequest, row: dict[str, Any]) -> Incoming:
    """Return what a new job counts as. Its dependencies are looked up without a lock, and again when it is written."""
    foreseen = dict(row)
    _mark_waiting(request, foreseen)
    return Incoming(row["tenant_id"], row["user_id"], queue_limits.load_of(foreseen))


def _mark_waiting(request: JobRequest, row: dict[str, Any]) -> None:
    if request.depends_on:
        states = dependencies.states_of([dependency.job for dependency in request.dependencies], is_locked=False)
        dependencies.mark_waiting(row, dependencies.unresolved(request.dependencies, row["tenant_id"], states))


def _insert(
    request: JobRequest, row: dict[str, Any], identity: Identity, key: str, request_hash: str, generation: int | None
) -> tuple[int, datetime, Room | None]:
    """Insert the job: in one statement without a transaction, unless it depends on others or takes tokens."""
    is_limited = row["tenant_id"] in identity.job_buckets
    if not request.depends_on and not is_limited:
        return *insert_job(row, identity, key, request_hash, generation), None
    with transaction.atomic():
        edges = _lock_dependencies(request, row) if request.depends_on else []
        job_id, submitted_at = insert_job(row, identity, key, request_hash, generation)
        if edges:
            dependencies.write([DependencyEdge(job_id, int(edge.job), edge.kind) for edge in edges])
        # Last, because other submits of the tenant wait for its buckets from here on. An array is one job.
        room = buckets.take(row["tenant_id"], identity.user_id, BucketUse.JOBS, 1) if is_limited else None
    return job_id, submitted_at, room


def _lock_dependencies(request: JobRequest, row: dict[str, Any]) -> Sequence[Dependency]:
    """Lock the jobs that the job depends on, mark its row as waiting, and return the unresolved dependencies."""
    archived.lock_open([row["tenant_id"]])  # before any job, as archiving does: otherwise the two could deadlock
    states = dependencies.states_of([dependency.job for dependency in request.dependencies])
    unresolved = dependencies.unresolved(request.dependencies, row["tenant_id"], states)
    dependencies.mark_waiting(row, unresolved)
    return unresolved


def _dependency_answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return the simulated answer for a job that waits for others to end, which has no forecast."""
    sentence = reasons.sentence(row["reason"], row["evidence"])
    step = reasons.next_step(row["reason"], row["evidence"])
    reason = {"code": row["reason"], "sentence": sentence, "next_step": step, "evidence": row["evidence"]}
    blank = {"starts_now": False, "placement": [], "estimate": None, "victims": None, "alternatives": []}
    return {**blank, "sentence": reasons.would_wait(sentence), "reason": reason}


def _require_possible(request: JobRequest, tenant_id: int, tenant: str, identity: Identity) -> None:
    secrets.require_known(request.secrets, tenant_id, tenant)
    admission.require_admissible(request, tenant_id, identity)


def _bulk_only_errors(request: JobRequest) -> list[FieldError]:
    """Return errors for fields that apply only within a bulk."""
    names = [dependency.job for dependency in request.dependencies if isinstance(dependency.job, str)]
    errors = [FieldError("depends_on", "unknown_ref", f"'{name[:64]}' is not a job id") for name in names]
    return errors + ([FieldError("ref", "conflict", "applies only to jobs/bulk")] if request.ref else [])


def _response(row: dict[str, Any], job_id: int, submitted_at: datetime, tenant: str, user: str) -> bytes:
    """Return the answer, with the job as submitted: a replay returns the same bytes whatever the job's progress."""
    job = representation.represent_new(row, job_id, submitted_at, tenant, user)
    message = f"job {job_id} is in the queue of tenant {tenant}"
    log_job_ids([job_id])
    return msgspec.json.encode({"job_id": job_id, "status": "submitted", "message": message, "job": job})


def _replay(job: dict[str, Any], request_hash: str) -> Submitted:
    """Return the answer to the first submit with this key, which made the job; 409 if that was another request."""
    job = replays.as_submitted(job, request_hash)
    return Submitted(_response(job, job["id"], job["submitted_at"], job["tenant"], job["user"]), True)


def new_key() -> str:
    """Return an idempotency key for a form, created when the page is rendered."""
    return uuid.uuid4().hex
