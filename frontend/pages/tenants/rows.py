"""The rows of topics `tenants` and `tenant:<name>`: use, waiting jobs, limits and past use of tenants."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from frontend.live.topics import Topic, key_by
from frontend.pages.queue import rows as queuerows
from gpusched.lib.db.sql import Row, prepared
from gpusched.lib.times import rfc3339
from scheduling.status import cluster
from tenants.api.tenants import represent_tenants
from tenants.billing import budgets

_NAMES = ("weight", "gpus_held", "jobs_live", "guaranteed_gpus", "max_gpus", "share", "usage_gpu_hours")
_NONE = {"jobs_waiting": 0, "jobs_asking": 0}
# All waiting jobs, and those that only wait for GPUs.
_WAITING = f"""
    SELECT j.tenant_id, sum(j.weight)::bigint AS jobs_waiting,
           coalesce(sum(j.weight) FILTER (WHERE {queuerows.IS_WAITING_FOR_GPUS}), 0)::bigint AS jobs_asking
      FROM jobs_all j WHERE j.is_waiting GROUP BY j.tenant_id
"""


def load() -> dict[int, Row]:
    """Return all tenants by id."""
    sql = "SELECT id, tier, archived_at IS NOT NULL AS is_archived FROM tenants_all"
    tenants = {row["id"]: row for row in prepared(sql)}
    waiting = {row["tenant_id"]: row for row in prepared(_WAITING)}
    return {
        share["tenant_id"]: {
            "name": share["tenant"],
            "tier": tenants[share["tenant_id"]]["tier"] if share["tenant_id"] in tenants else "standard",
            **{name: waiting.get(share["tenant_id"], _NONE)[name] for name in _NONE},
            **{name: share[name] for name in _NAMES},
            "is_archived": share["tenant_id"] in tenants and tenants[share["tenant_id"]]["is_archived"],
        }
        for share in cluster.shares(with_archived=True)
    }


def restrict(tenants: dict[int, Row], visible: Sequence[int] | None, *, with_archived: bool = False) -> dict[str, Row]:
    """Return visible tenants by name; archived ones only if requested, as in the REST API."""
    return {
        row["name"]: _public_row(row)
        for tenant_id, row in tenants.items()
        if (visible is None or tenant_id in visible) and (with_archived or not row["is_archived"])
    }


def _public_row(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "is_archived"}


_MEMBERS = """
    SELECT m.tenant_id, u.username AS "user", m.role FROM tenants_members m JOIN tenants_people u ON u.id = m.user_id
     WHERE m.tenant_id = ANY(%s) ORDER BY u.username
"""
_PREEMPTED = """
    SELECT j.tenant_id, count(*) AS received FROM jobs_attempts a JOIN jobs_all j ON j.id = a.job_id
     WHERE a.reason = 'preempted' AND a.ended_at > now() - interval '1 day' AND j.tenant_id = ANY(%s) GROUP BY 1
"""


def load_details(names: Collection[str], tenants: Mapping[int, Row]) -> dict[str, Row]:
    """Return {name: {"id", "rows"}} for tenants that exist; `tenants`: from load()."""
    ids = sorted(tenant_id for tenant_id, row in tenants.items() if row["name"] in names)
    details = {
        row["name"]: {
            "id": row["id"],
            "rows": {"tenant": {**row, **_public_row(tenants[row["id"]])}, "preempted": {"received_in_a_day": 0}},
        }
        for row in represent_tenants(ids)
    }
    rows_of = {detail["id"]: detail["rows"] for detail in details.values()}
    for row in prepared(_MEMBERS, [ids]):
        rows_of[row.pop("tenant_id")][f"member:{row['user']}"] = row
    for row in prepared(_PREEMPTED, [ids]):
        rows_of[row["tenant_id"]]["preempted"] = {"received_in_a_day": row["received"]}
    for budget in budgets.statuses(ids) if ids else ():
        rows_of[budget.tenant_id]["budget"] = {
            "soft_gpu_hours": budget.soft_gpu_hours,
            "hard_gpu_hours": budget.hard_gpu_hours,
            "used_gpu_hours": round(budget.used_gpu_hours, 1),
            "state": budget.state,
            "renews_at": rfc3339(budget.renews_at),
        }
    return details


def restrict_details(loaded: Mapping[str, Row], name: str, visible: Sequence[int] | None) -> dict[str, Row] | None:
    """Return the rows, or None if the tenant does not exist or the viewer cannot see it."""
    detail = loaded.get(name)
    if detail is None or (visible is not None and detail["id"] not in visible):
        return None
    rows: dict[str, Row] = detail["rows"]
    return rows


def bar_scale(tenants: Iterable[dict[str, Any]]) -> float:
    """Return the number of GPUs at the full width of the tenants' bars."""
    return max((max(t["gpus_held"], t["guaranteed_gpus"], t["max_gpus"] or 0) for t in tenants), default=0) or 1


TOPICS = (
    Topic(
        "tenants",
        lambda _requested, _loaded: load(),
        lambda tenants, _, viewer: restrict(tenants, viewer.visible),
        invalidated_by=frozenset({"jobs", "tenants"}),
    ),
    Topic(
        "tenant",
        lambda requested, loaded: load_details({name for name, _viewer in requested}, loaded["tenants"]),
        lambda tenants, name, viewer: restrict_details(tenants, name, viewer.visible),
        key_of=key_by(re.compile(r"tenant:([a-z0-9-]{1,63})", re.ASCII)),
        needs=("tenants",),
        group="tenants",
        invalidated_by=frozenset({"jobs", "tenants"}),
    ),
)
