"""The rows of topic `tenants`: what each tenant holds, waits for, may hold and has used."""

from collections.abc import Sequence
from typing import Any

from gpusched.lib.sql import query
from scheduling import services

Row = dict[str, Any]
_NAMES = ("weight", "gpus_held", "jobs_live", "guaranteed_gpus", "max_gpus", "share", "usage_gpu_hours")


def load() -> dict[int, Row]:
    """All tenants by id."""
    tiers = {row["id"]: row["tier"] for row in query("SELECT id, tier FROM tenants_tenant")}
    waiting = {
        row["tenant_id"]: row["n"]
        for row in query(
            "SELECT tenant_id, count(*) AS n FROM jobs_job WHERE state IN ('pending', 'held') GROUP BY tenant_id"
        )
    }
    return {
        share["tenant_id"]: {
            "name": share["tenant"],
            "tier": tiers.get(share["tenant_id"], "standard"),
            "jobs_waiting": waiting.get(share["tenant_id"], 0),
            **{name: share[name] for name in _NAMES},
        }
        for share in services.shares()
    }


def restrict(tenants: dict[int, Row], visible: Sequence[int] | None) -> dict[str, Row]:
    """By name; as in the REST API, members see their own tenants only."""
    return {row["name"]: row for tenant_id, row in tenants.items() if visible is None or tenant_id in visible}
