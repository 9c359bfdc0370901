"""Authorize callers of streams: at the opening, and every second until the end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.http import HttpRequest

from gpusched.lib.api import rate_limits
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.lib.db.sql import query
from gpusched.protocol.states import JobState, Scope
from nodes.streams.locate import Located, Target, locate
from tenants.auth.identity import Identity
from tenants.auth.page_access import Credential, identity_of


@dataclass(frozen=True)
class Right:
    """The right to a stream: a caller, and the attempt of a job that it reaches."""

    credential: Credential
    job_id: int
    attempt: int


def admit(credential: Credential | None, parse: Callable[[], Target], address: str) -> tuple[Identity, Located]:
    """Authenticate and authorize a caller as for a signal to the job, and record the opening in the audit log. Raises
    Problem. `parse`: returns the target, or raises a 400, after the caller is known. `address`: of the client, for
    counting invalid tokens."""
    request = HttpRequest()
    request.META["REMOTE_ADDR"] = address
    identity = identity_of(credential) if credential is not None else None
    if identity is None:
        if credential is not None:
            rate_limits.count_bad_token(request)
        raise _not_authenticated()
    is_token = isinstance(credential, str)
    rate_limits.count(request, identity.via if is_token else f"person {identity.user_id}")
    identity.require_scope(Scope.WRITE)
    target = parse()
    target.require_valid()
    located = locate(target, identity)
    log.act_as(identity.username, identity.via)
    with transaction.atomic():
        log.record("stream.open", f"job {target.job_id}", None, target.described)
    return identity, located


def refusals(rights: Sequence[Right]) -> list[Problem | None]:
    """Return for each stream why it must end now, or None."""
    identities = {credential: identity_of(credential) for credential in {right.credential for right in rights}}
    ids = sorted({right.job_id for right in rights})
    sql = "SELECT id, tenant_id, user_id, state, attempt FROM jobs_all WHERE id = ANY(%s)"
    jobs = {job["id"]: job for job in query(sql, [ids])}
    return [_refusal(right, identities[right.credential], jobs.get(right.job_id)) for right in rights]


def _refusal(right: Right, identity: Identity | None, job: dict[str, Any] | None) -> Problem | None:
    subject = f"job {right.job_id}"
    if identity is None:
        return _not_authenticated()
    if job is None or job["attempt"] != right.attempt or job["state"] not in (JobState.RUNNING, JobState.STOPPING):
        detail = f"attempt {right.attempt} of {subject} has ended"
        return Problem(410, "rank_ended", detail, next_step="see the state of the job")
    try:
        identity.require(identity.role_for(job["user_id"]), job["tenant_id"], subject)
        identity.require_scope(Scope.WRITE)
    except Problem as problem:
        return problem
    return None


def _not_authenticated() -> Problem:
    detail = "no token or session, or one that is unknown, expired or revoked"
    return Problem(401, "not_authenticated", detail, next_step="send Authorization: Bearer TOKEN")
