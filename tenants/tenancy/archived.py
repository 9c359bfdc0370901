"""Archived tenants accept no new jobs: the check, and the lock that keeps a tenant open until a transaction ends."""

from collections.abc import Collection

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query


def refusal(tenant: str) -> Problem:
    """Return the 409 for a new job."""
    return Problem(
        409,
        "tenant_archived",
        f"tenant {tenant} is archived and accepts no jobs",
        next_step="submit for another tenant, or ask an admin to unarchive it",
    )


def is_archived(tenant_id: int) -> bool:
    return bool(query("SELECT 1 FROM tenants_tenant WHERE id = %s AND archived_at IS NOT NULL", [tenant_id]))


def lock_open(tenant_ids: Collection[int]) -> None:
    """Raise a 409 if one of the tenants is archived. Keep them open until the transaction ends: the lock is the one
    that a new row takes on its tenant anyway."""
    rows = query(
        "SELECT name, archived_at FROM tenants_tenant WHERE id = ANY(%s) ORDER BY id FOR KEY SHARE", [list(tenant_ids)]
    )
    for row in rows:
        if row["archived_at"] is not None:
            raise refusal(row["name"])
