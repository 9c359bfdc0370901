"""Turns a request into the row of its job, and finds whose job it is to be."""

import math
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.utils import timezone

from gpusched.lib.api.problems import invalid, not_found
from gpusched.lib.api.rest import parse_moment
from gpusched.lib.db.sql import prepared
from gpusched.lib.request_id import traceparent
from gpusched.protocol.arrays import ArrayRequest, multirange
from gpusched.protocol.job_request import FieldError, JobRequest
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import Role
from tenants.auth.identity import Identity
from tenants.tenancy import archived

# The scheduler counts on from it: near the end of time there would be no date for what follows.
MAX_DAYS_AHEAD = 36_525


def resolve_tenant(request: JobRequest, identity: Identity) -> tuple[int, str]:
    """Id and name of the tenant that a request is for; refuses who may not submit for it."""
    if request.tenant is None:
        name, tenant_id, is_archived = _only_tenant(identity)
    else:
        name = request.tenant
        tenant_id, is_archived = _tenant_named(name, identity)
    identity.require(Role.MEMBER, tenant_id, f"tenant '{name}'")
    if is_archived:
        raise archived.refusal(name)
    return tenant_id, name


def _only_tenant(identity: Identity) -> tuple[str, int, bool]:
    """Return the one tenant that is open to the caller; archived ones count only if there is no other."""
    ids = [tenant_id for tenant_id in identity.roles if tenant_id not in identity.archived] or list(identity.roles)
    if len(ids) == 1:
        return identity.tenant_names[ids[0]], ids[0], ids[0] in identity.archived
    mine = ", ".join(sorted(identity.tenant_names[tenant_id] for tenant_id in ids)) or "none"
    raise invalid([FieldError("tenant", "required", f"say for which tenant; yours: {mine}")])


def _tenant_named(name: str, identity: Identity) -> tuple[int, bool]:
    for tenant_id, own_name in identity.tenant_names.items():
        if name == own_name:
            return tenant_id, tenant_id in identity.archived
    may_ask = identity.is_admin and "\x00" not in name
    sql = "SELECT id, archived_at IS NOT NULL AS is_archived FROM tenants_tenant WHERE name = %s"
    rows = prepared(sql, [name]) if may_ask else []
    if not rows:
        raise not_found(f"tenant '{name}'")
    return rows[0]["id"], rows[0]["is_archived"]


def job_row(request: JobRequest, tenant_id: int, identity: Identity) -> dict[str, Any]:
    """The columns that `insertion.insert` takes, of a request without `problems`."""
    not_before = _not_before(request.not_before)
    return {
        "tenant_id": tenant_id,
        "user_id": identity.user_id,
        "name": request.name or _default_name(request),
        "priority": request.priority,
        "gpu_count": request.gpu_count,
        "gpu_memory_mb": request.gpu_memory_mb,
        "gpu_models": request.gpu_models,
        "gpu_sharing": request.gpu_sharing,
        "cpu_milli": math.ceil(request.cpu_cores * 1000),
        "memory_mb": request.memory_mb,
        "gang_scheduling": request.gang_scheduling,
        "ranks": request.ranks,
        "workload_class": request.workload_class,
        "max_runtime_seconds": _seconds(request.max_runtime_minutes),
        "predicted_seconds": _seconds(request.predicted_runtime_minutes),
        "preemptible": request.preemptible,
        "requeue": request.requeue,
        "max_retries": request.max_retries,
        "retry_on": sorted(set(request.retry_on)),
        "grace_seconds": request.grace_seconds,
        "not_before": not_before,
        "eligible_at": not_before,
        "depends_on": [{"job": one.job, "kind": one.kind} for one in request.dependencies],
        "open_dependencies": 0,
        "reason": Pending.SCHEDULER_BEHIND,
        "evidence": {},
        **_array(request.array),
        "labels": request.labels,
        "node_selector": request.required_labels,
        "node_affinity": {} if request.node_affinity is None else msgspec.to_builtins(request.node_affinity),
        "tolerations": msgspec.to_builtins(request.tolerations),
        "topology": request.topology,
        "anti_affinity": request.anti_affinity or "",
        "payload": _payload(request),
        "traceparent": traceparent(),
    }


def _not_before(text: str | None) -> datetime | None:
    if text is None:
        return None
    at = parse_moment("not_before", text)
    if at - timezone.now() > timedelta(days=MAX_DAYS_AHEAD):
        message = f"must be at most {MAX_DAYS_AHEAD:,} days (100 years) from now"
        raise invalid([FieldError("not_before", "out_of_range", message)])
    return at


def _payload(request: JobRequest) -> dict[str, Any]:
    """What only the agent that runs the job looks at."""
    return {
        "command": request.command,
        "args": request.args,
        "script": request.script,
        "workdir": request.workdir,
        "environment": request.environment,
        "secrets": sorted(request.secrets),
        "image": request.image,
        "runtime": request.runtime,
        "mounts": request.mounts,
    }


# The columns that gpusched.protocol.bulk.VARYING_FIELDS stands in.
OF_FREE = ("name", "payload")


def vary_row(row: dict[str, Any], request: JobRequest) -> dict[str, Any]:
    """Return the row of a request that differs from that of `row` in protocol.bulk.VARYING_FIELDS at most."""
    payload = {**row["payload"], "args": request.args, "environment": request.environment}
    return {**row, "name": request.name or _default_name(request), "payload": payload}


def _array(array: ArrayRequest | None) -> dict[str, Any]:
    if array is None:
        return {"array_count": None, "array_max_parallel": None, "array_waiting": None, "array_cancelled": None}
    return {
        "array_count": array.count,
        "array_max_parallel": array.max_parallel,
        "array_waiting": multirange(((0, array.count),)),
        "array_cancelled": multirange(()),
    }


def _seconds(minutes: float | None) -> int | None:
    return None if minutes is None else max(1, round(minutes * 60))


def _default_name(request: JobRequest) -> str:
    return request.command[0].rsplit("/", 1)[-1][:200] if request.command else "script"
