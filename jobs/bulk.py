"""Submits many jobs at once: each is checked as a single submit would be, then all are written, or none.

One statement writes a thousand rows; what the single submits would ask the database for each job is asked once."""

from collections.abc import Hashable, Sequence
from typing import Any

from django.db import transaction

from gpusched.lib import audit
from gpusched.lib.problems import Problem, invalid
from gpusched.lib.requests import concerns
from gpusched.protocol.bulk import alike, bulk_problems, field_of
from gpusched.protocol.dependencies import Dependency
from gpusched.protocol.jobs import FieldError, JobRequest
from jobs import admission, dependencies, services
from jobs.dependencies import Edge
from jobs.insertion import insert_all, new_ids
from jobs.rows import OF_FREE, row_like, row_of, tenant_of
from tenants import secrets
from tenants.permissions import Identity


def submit_all(requests: Sequence[JobRequest], identity: Identity, *, is_dry_run: bool = False) -> list[int]:
    """Makes them pending, in one transaction, and gives their ids in order; a dry run makes nothing and gives none.

    Refused as the single submits would be, by `jobs[n]`: if one is, none is submitted."""
    likes = alike(requests)
    if found := bulk_problems(requests, likes):
        raise invalid(found)
    rows = _rows(requests, likes, identity)
    services.require_room(len(rows))
    with transaction.atomic():
        # Ids that nobody has tell the jobs of a dry run apart.
        ids = list(range(-len(rows), 0)) if is_dry_run else new_ids(len(rows))
        for job_id, row in zip(ids, rows, strict=True):
            row["id"] = job_id
        edges = _edges(requests, rows, is_locked=not is_dry_run)
        if is_dry_run:
            return []
        is_sweep = not any(likes) and not requests[0].depends_on
        insert_all(rows, identity, ("id", *OF_FREE) if is_sweep else ())
        audit.act_as(identity.username, identity.via)
        told = {"count": len(ids), "first_id": ids[0], "last_id": ids[-1]}
        audit.record("jobs.bulk", f"jobs {ids[0]} to {ids[-1]}", None, told)
        if edges:
            dependencies.write(edges)
    concerns(ids)
    return ids


def _edges(requests: Sequence[JobRequest], rows: Sequence[dict[str, Any]], *, is_locked: bool) -> list[Edge]:
    """What the jobs wait for, among themselves by `ref` and of others by id; their rows say so from now on."""
    depending = [number for number, request in enumerate(requests) if request.depends_on]
    if not depending:
        return []
    refs = {request.ref: row for request, row in zip(requests, rows, strict=True) if request.ref}
    own = {row["id"]: (row["tenant_id"], "pending") for row in refs.values()}
    others = {one.job for number in depending for one in requests[number].dependencies}
    states = {**dependencies.states_of(others, is_locked=is_locked), **own}
    edges = []
    for number in depending:
        row, request = rows[number], requests[number]
        wanted = [
            Dependency(job=refs[one.job]["id"] if isinstance(one.job, str) else one.job, kind=one.kind)
            for one in request.dependencies
        ]
        row["depends_on"] = [{"job": one.job, "kind": one.kind} for one in wanted]
        try:
            undecided = dependencies.undecided(wanted, row["tenant_id"], states)
        except Problem as problem:
            raise _of_job(number, problem) from problem
        dependencies.wait_for(row, undecided)
        edges += [Edge(row["id"], int(one.job), one.kind) for one in undecided]
    return edges


def _rows(requests: Sequence[JobRequest], likes: Sequence[int], identity: Identity) -> list[dict[str, Any]]:
    """The rows of those that could start one day. Tenants are looked up, and shapes judged, once for all alike."""
    tenants: dict[str | None, tuple[int, str]] = {}
    judged: set[Hashable] = set()
    rows: list[dict[str, Any]] = []
    for number, (request, like) in enumerate(zip(requests, likes, strict=True)):
        if like != number:
            rows.append(row_like(rows[like], request))
            continue
        try:
            if request.tenant not in tenants:
                tenants[request.tenant] = tenant_of(request, identity)
            tenant_id, tenant = tenants[request.tenant]
            asked = (tenant_id, *admission.asked(request))
            if asked not in judged:
                secrets.require_known(request.secrets, tenant_id, tenant)
                admission.require_possible(request, tenant_id, identity)
                judged.add(asked)
            rows.append(row_of(request, tenant_id, identity))
        except Problem as problem:
            raise _of_job(number, problem) from problem
    return rows


def _of_job(number: int, problem: Problem) -> Problem:
    """The refusal of a single submit, said of this one among many."""
    errors = [FieldError(field_of(number, one.field), one.code, one.message) for one in problem.errors]
    return Problem(
        problem.status,
        problem.code,
        f"{field_of(number)}: {problem.detail}",
        next_step=problem.next_step,
        errors=errors or [FieldError(field_of(number), problem.code, problem.detail)],
    )
