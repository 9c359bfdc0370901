"""Archive a tenant and restore it. Only a tenant without unfinished jobs can be archived, unless they are cancelled."""

from typing import Any

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query, retry_atomic
from gpusched.protocol.reasons import fix_plurals
from gpusched.protocol.states import FINAL, WAITING
from jobs.actions import job_actions
from tenants.auth.identity import Identity
from tenants.models import Tenant
from tenants.tenancy.tenants import set_archived


def archive(tenant_id: int, identity: Identity, *, cancel_jobs: bool) -> dict[str, int]:
    """Archive a tenant. Return how many waiting jobs were cancelled and how many live ones are being stopped. 409 while
    it has unfinished jobs that are not to be cancelled. Harmless when repeated."""

    def work() -> dict[str, int]:
        # Waits for submits under way, and lets none pass: each new job locks its tenant FOR KEY SHARE.
        tenant = Tenant.objects.select_for_update().get(pk=tenant_id)
        if not cancel_jobs:
            _require_no_jobs(tenant)
        waited, stopping = job_actions.cancel_all(tenant_id, identity) if cancel_jobs else (0, 0)
        if tenant.archived_at is None:
            set_archived(tenant, is_archived=True, actor=identity.username)
        return {"cancelled_jobs": waited, "stopping_jobs": stopping}

    return retry_atomic(work)


def unarchive(tenant_id: int, identity: Identity) -> None:
    """Let a tenant submit again, with the quota, guarantee and members that it has. Harmless when repeated."""

    def work() -> None:
        tenant = Tenant.objects.select_for_update().get(pk=tenant_id)
        if tenant.archived_at is not None:
            set_archived(tenant, is_archived=False, actor=identity.username)

    retry_atomic(work)


def _require_no_jobs(tenant: Tenant) -> None:
    [row] = query(_UNFINISHED, {"waiting": list(WAITING), "final": list(FINAL), "tenant": tenant.pk})
    counts: dict[str, Any] = {word: row[word] for word in ("waiting", "running")}
    if any(counts.values()):
        detail = f"tenant {tenant.name} has {counts['waiting']} jobs that wait and {counts['running']} jobs that run"
        step = "wait for their end, or cancel them with it: cancel_jobs, gpusched tenant archive --cancel-jobs"
        raise Problem(409, "tenant_has_jobs", fix_plurals(detail), next_step=step)


_UNFINISHED = """
    SELECT count(*) FILTER (WHERE state = ANY(%(waiting)s)) AS waiting,
           count(*) FILTER (WHERE state <> ALL(%(waiting)s)) AS running
      FROM jobs_job WHERE tenant_id = %(tenant)s AND array_id IS NULL AND state <> ALL(%(final)s)
"""
