"""Details of tenants: GPUs by model against limits, members, preemptions and the history of edits."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from gpusched.lib.db.sql import Row, query
from gpusched.lib.times import parsed, readable
from gpusched.protocol.times import TIMESTAMP
from tenants.auth.identity import Identity
from tenants.billing.rates import matches_model
from tenants.tenancy import names

MAX_EDITS = 30
PREEMPTION_DAYS = 30

_ALLOCATED = """
    SELECT tenant_id, gpu_model AS model, sum(gpu_weight) AS gpus FROM nodes_held GROUP BY 1, 2
"""
_MODELS = "SELECT model, count(*) AS gpus FROM nodes_devices GROUP BY model ORDER BY count(*) DESC, model"


def by_model(tenants: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the use of each model by tenant: `model gpus_held limit limits in_fleet`. `limit`: the lowest that
    applies, or None; `limits`: its scope, empty for this model alone, else `all A100` or `all GPUs`."""
    models = query(_MODELS)
    allocated = {(row["tenant_id"], row["model"]): round(row["gpus"], 2) for row in query(_ALLOCATED)}
    names = [row["model"] for row in models]
    return {tenant["name"]: [_of_model(tenant, row, allocated, names) for row in models] for tenant in tenants}


def _of_model(tenant: Row, model: Row, allocated: Mapping[tuple[int, str], float], names: Sequence[str]) -> Row:
    quota = tenant["quota"]
    limits = [
        (limit, expression)
        for expression, limit in quota["max_gpus_by_model"].items()
        if matches_model(expression, model["model"])
    ]
    if quota["max_gpus"] is not None:
        limits.append((quota["max_gpus"], "GPUs"))
    limit, expression = min(limits, key=lambda each: each[0], default=(None, ""))
    is_shared = expression == "GPUs" or sum(matches_model(expression, name) for name in names) > 1
    return {
        "model": model["model"],
        "gpus_held": allocated.get((tenant["id"], model["model"]), 0),
        "limit": limit,
        "limits": f"all {expression}" if limit is not None and is_shared else "",
        "in_fleet": model["gpus"],
    }


_MEMBERS = """
    SELECT m.tenant_id, u.username, m.role, u.is_active FROM tenants_members m JOIN tenants_people u ON u.id = m.user_id
     WHERE m.tenant_id = ANY(%s) ORDER BY m.role = 'owner' DESC, m.role = 'member' DESC, u.username
"""


def members(tenant_ids: Collection[int]) -> dict[int, list[Row]]:
    """Return members by tenant, owners first."""
    by_tenant: dict[int, list[Row]] = {}
    for row in query(_MEMBERS, [list(tenant_ids)]):
        by_tenant.setdefault(row["tenant_id"], []).append(row)
    return by_tenant


# Preempted attempts with the preempting job; attempts moved off hot GPUs have none.
_PREEMPTIONS = """
    SELECT v.tenant_id AS from_id, vt.name AS from_tenant, o.tenant_id AS for_id, ot.name AS for_tenant,
           a.evidence->>'rule' AS rule, count(*) AS attempts, max(a.ended_at) AS last_at
      FROM jobs_attempts a JOIN jobs_all v ON v.id = a.job_id JOIN tenants_all vt ON vt.id = v.tenant_id
      LEFT JOIN jobs_all o ON o.id = (a.evidence->>'by_job')::bigint LEFT JOIN tenants_all ot ON ot.id = o.tenant_id
     WHERE a.reason = 'preempted' AND a.ended_at > now() - make_interval(days => %s)
     GROUP BY 1, 2, 3, 4, 5 ORDER BY attempts DESC
"""


def preemptions() -> list[Row]:
    """Count preempted attempts of the last 30 days by tenants and rule."""
    return query(_PREEMPTIONS, [PREEMPTION_DAYS])


def preempted_by(counts: Sequence[Row], tenant_id: int, identity: Identity) -> list[Row]:
    """Return preemptions of the tenant. `other_tenant` is named only if visible; None: no tenant."""
    rows = [row for row in counts if row["from_id"] == tenant_id and row["for_id"] != tenant_id]
    return [{**row, "other_tenant": _other_tenant(row["for_id"], row["for_tenant"], identity)} for row in rows]


def preempted_for(counts: Sequence[Row], tenant_id: int, identity: Identity) -> list[Row]:
    """Return preemptions by the tenant; `other_tenant` lost the attempts."""
    rows = [row for row in counts if row["for_id"] == tenant_id and row["from_id"] != tenant_id]
    return [{**row, "other_tenant": _other_tenant(row["from_id"], row["from_tenant"], identity)} for row in rows]


def _other_tenant(tenant_id: int | None, name: str | None, identity: Identity) -> str | None:
    if tenant_id is None:
        return None
    return f"tenant {name}" if identity.sees(tenant_id) else "another tenant"


def balance(counts: Sequence[Row], tenant_id: int) -> dict[str, int]:
    """Count attempts that the tenant lost to others (`received`) and took from them (`given`)."""
    others = [row for row in counts if row["for_id"] != row["from_id"]]
    return {
        "received": sum(row["attempts"] for row in others if row["from_id"] == tenant_id),
        "given": sum(row["attempts"] for row in others if row["for_id"] == tenant_id),
    }


# Entries use the name of their time, which another tenant can have now.
_TENANT_ENTRIES = """
    lib_audit_entries a JOIN unnest(%s::text[], %s::timestamptz[], %s::timestamptz[]) AS n (subject, since, until)
      ON a.subject = n.subject AND a.at >= n.since AND (n.until IS NULL OR a.at < n.until)
"""
_EDITS = f"""
    SELECT a.id, a.at, a.actor, a.via, a.action, a.subject, a.before, a.after
      FROM {_TENANT_ENTRIES} ORDER BY a.id DESC LIMIT %s
"""
_QUOTA_BEFORE = f"SELECT a.before FROM {_TENANT_ENTRIES} WHERE a.id = %s AND a.before IS NOT NULL"


def edits(tenant_id: int) -> list[Row]:
    """Return edits of the tenant, its quota and its budget, newest first; `changes`: (field, before, after)."""
    subjects = _subjects(tenant_id, "tenant", "quota", "budget", "quota quota of", "budget budget of")
    return [{**row, "changes": _changes(row)} for row in query(_EDITS, [*subjects, MAX_EDITS])]


def quota_before(tenant_id: int, entry_id: str) -> Row | None:
    """Return the quota before an edit, or None if the edit does not exist."""
    is_id = entry_id.isascii() and entry_id.isdigit() and len(entry_id) < 19
    rows = query(_QUOTA_BEFORE, [*_subjects(tenant_id, "quota"), int(entry_id)]) if is_id else []
    return rows[0]["before"] if rows else None


def _subjects(tenant_id: int, *kinds: str) -> tuple[list[str], list[datetime], list[datetime | None]]:
    """Return the columns subject, since and until for entries under each name of the tenant."""
    named = [(f"{kind} {span.name}", span.since, span.until) for span in names.spans(tenant_id) for kind in kinds]
    return [entry[0] for entry in named], [entry[1] for entry in named], [entry[2] for entry in named]


def _changes(row: Row) -> list[tuple[str, Any, Any]]:
    previous, current = row["before"] or {}, row["after"] or {}
    names = [name for name in {**previous, **current} if name not in ("version", "quota", "go_ahead")]
    return [(name, _in_words(previous.get(name)), _in_words(current.get(name))) for name in names]


def _in_words(value: Any) -> Any:
    """Format a recorded value; None stays None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and TIMESTAMP.fullmatch(value):
        return readable(parsed(value))
    if isinstance(value, dict):
        return ", ".join(f"{name}: {inner}" for name, inner in value.items()) or None
    if isinstance(value, list):
        return ", ".join(map(str, value)) or None
    return value
