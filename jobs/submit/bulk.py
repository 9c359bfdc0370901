"""Submit many jobs at once: check each like a single submit, then write all or none.

One statement writes a thousand rows, and one query replaces those that single submits would run for each job."""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import transaction

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.audit import log
from gpusched.lib.request_id import log_job_ids
from gpusched.protocol.bulk import MAX_ERRORS, bulk_problems, field_path, first_identical
from gpusched.protocol.dependencies import Dependency
from gpusched.protocol.job_request import FieldError, JobRequest
from jobs.lifecycle import dependencies
from jobs.lifecycle.dependencies import DependencyEdge
from jobs.submit import admission, auto_memory, queue_limits, queue_locks, refusals
from jobs.submit.job_row import VARYING_COLUMNS, insert_jobs, job_row, new_ids, resolve_tenant, vary_row
from jobs.submit.queue_limits import Incoming, Load
from tenants import buckets, secrets
from tenants.auth.identity import Identity
from tenants.buckets import Room
from tenants.models import BucketUse
from tenants.tenancy import archived


class Bulk(NamedTuple):
    """The ids of the jobs in order, and the value of the header Queue-Warning. `room`: of the bucket with the fewest
    tokens."""

    ids: list[int]
    warning: str = ""
    room: Room | None = None


def submit_all(requests: Sequence[JobRequest], identity: Identity, *, is_dry_run: bool = False) -> Bulk:
    """Submit jobs in one transaction; a dry run writes nothing and returns no ids.

    Refusals are those of single submits, with `jobs[n]`. If one job is refused, none is submitted."""
    originals = first_identical(requests)
    if errors := bulk_problems(requests, originals):
        raise invalid(errors, at_most=MAX_ERRORS)
    rows = _rows(requests, originals, identity)
    tenant_ids = {row["tenant_id"] for row in rows}
    maximum = Load(len(rows), sum(1 for request in requests if request.depends_on or request.not_before))
    near = {owner for owner in tenant_ids if queue_limits.is_bulk_near(Incoming(owner, identity.user_id, maximum))}
    with transaction.atomic():
        if near and not is_dry_run:
            queue_locks.lock_for_bulk(near)
        # Negative ids, which no job has, tell the jobs of a dry run apart.
        ids = list(range(-len(rows), 0)) if is_dry_run else new_ids(len(rows))
        for job_id, row in zip(ids, rows, strict=True):
            row["id"] = job_id
        if not is_dry_run:
            archived.lock_open(tenant_ids)  # before any job, as archiving does: otherwise the two could deadlock
        edges = _edges(requests, rows, is_locked=not is_dry_run)
        loads = _loads(rows)
        _require_room(loads, near, identity)
        if is_dry_run:
            return Bulk([])
        is_sweep = not any(originals) and not requests[0].depends_on
        insert_jobs(rows, identity, ("id", *VARYING_COLUMNS) if is_sweep else ())
        log.act_as(identity.username, identity.via)
        summary = {"count": len(ids), "first_id": ids[0], "last_id": ids[-1]}
        log.record("jobs.submit.bulk", f"jobs {ids[0]} to {ids[-1]}", None, summary)
        if edges:
            dependencies.write(edges)
        room = _take_tokens(loads, identity)
    log_job_ids(ids)
    for tenant_id, load in loads.items():
        queue_limits.add(Incoming(tenant_id, identity.user_id, load))
    warnings = (queue_limits.warning(tenant_id, identity.user_id) for tenant_id in sorted(tenant_ids))
    return Bulk(ids, ", ".join(filter(None, warnings)), room)


def _take_tokens(loads: Mapping[int, Load], identity: Identity) -> Room | None:
    """Take a token for each job from the buckets of its tenant."""
    rooms = []
    for tenant_id in sorted(identity.job_buckets & loads.keys()):  # in one order, so that no two bulks deadlock
        with refusals.paced(tenant_id):
            rooms.append(buckets.take(tenant_id, identity.user_id, BucketUse.JOBS, sum(loads[tenant_id])))
    return min((room for room in rooms if room), key=lambda room: room.remaining, default=None)


def _loads(rows: Sequence[dict[str, Any]]) -> dict[int, Load]:
    """Return what the jobs count as, by tenant."""
    loads: dict[int, Load] = {}
    for row in rows:
        loads[row["tenant_id"]] = loads.get(row["tenant_id"], Load()) + queue_limits.load_of(row)
    return loads


def _require_room(loads: Mapping[int, Load], near: Collection[int], identity: Identity) -> None:
    """Raise 429 if the jobs exceed their tenants' queue limits. `near`: the tenants whose jobs are counted exactly."""
    for tenant_id, load in sorted(loads.items()):
        with refusals.paced(tenant_id):
            queue_limits.require(Incoming(tenant_id, identity.user_id, load), is_exact=tenant_id in near)


def _edges(requests: Sequence[JobRequest], rows: Sequence[dict[str, Any]], *, is_locked: bool) -> list[DependencyEdge]:
    """Return the dependencies of the jobs, by `ref` within the bulk and by id on others. Mark their rows as waiting."""
    depending = [number for number, request in enumerate(requests) if request.depends_on]
    if not depending:
        return []
    refs = {request.ref: row for request, row in zip(requests, rows, strict=True) if request.ref}
    bulk_states = {row["id"]: (row["tenant_id"], "pending") for row in refs.values()}
    named_ids = {dependency.job for number in depending for dependency in requests[number].dependencies}
    states = {**dependencies.states_of(named_ids, is_locked=is_locked), **bulk_states}
    edges = []
    for number in depending:
        row, request = rows[number], requests[number]
        requested = [
            Dependency(job=refs[job]["id"] if isinstance(job, str) else job, kind=kind)
            for job, kind in ((dependency.job, dependency.kind) for dependency in request.dependencies)
        ]
        row["depends_on"] = [{"job": dependency.job, "kind": dependency.kind} for dependency in requested]
        try:
            unresolved = dependencies.unresolved(requested, row["tenant_id"], states)
        except Problem as problem:
            raise _of_job(number, problem) from problem
        dependencies.mark_waiting(row, unresolved)
        edges += [DependencyEdge(row["id"], int(dependency.job), dependency.kind) for dependency in unresolved]
    return edges


def _rows(requests: Sequence[JobRequest], originals: Sequence[int], identity: Identity) -> list[dict[str, Any]]:
    """Return the rows of the jobs, all admissible. Equal tenants and shapes are checked once."""
    tenants: dict[str | None, tuple[int, str]] = {}
    admissible: set[Hashable] = set()
    choices: dict[Hashable, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for number, (request, original) in enumerate(zip(requests, originals, strict=True)):
        if original != number:
            rows.append(vary_row(rows[original], request))
            continue
        try:
            if request.tenant not in tenants:
                tenants[request.tenant] = resolve_tenant(request, identity)
            tenant_id, tenant = tenants[request.tenant]
            request, choice = auto_memory.resolve(request, tenant_id, identity, choices)
            shape = (tenant_id, *admission.shape_key(request))
            if shape not in admissible:
                with refusals.paced(tenant_id):
                    secrets.require_known(request.secrets, tenant_id, tenant)
                    admission.require_admissible(request, tenant_id, identity)
                admissible.add(shape)
            rows.append(job_row(request, tenant_id, identity, choice))
        except Problem as problem:
            raise _of_job(number, problem) from problem
    return rows


def _of_job(number: int, problem: Problem) -> Problem:
    """Return a single submit's refusal with the number of the job in the bulk."""
    errors = [FieldError(field_path(number, error.field), error.code, error.message) for error in problem.errors]
    return Problem(
        problem.status,
        problem.code,
        f"{field_path(number)}: {problem.detail}",
        next_step=problem.next_step,
        errors=errors or [FieldError(field_path(number), problem.code, problem.detail)],
    )
