"""Turn a request into the row of a job and insert it, and resolve the tenant of a request."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.utils import timezone

from gpusched.lib.api.problems import invalid, not_found
from gpusched.lib.api.rest import parse_moment
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import as_json, prepared, query
from gpusched.lib.request_id import traceparent
from gpusched.protocol.arrays import ArrayRequest, multirange
from gpusched.protocol.job_request import FieldError, JobRequest
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import Role
from jobs.events.record import insert_sql
from jobs.submit import idempotency
from jobs.submit.queue_locks import IS_CURRENT, CountIsStale
from tenants.auth.identity import Identity
from tenants.tenancy import archived

_COLUMNS = {
    "tenant_id": "bigint", "user_id": "bigint", "name": "text", "priority": "int", "gpu_count": "int",
    "gpu_memory_mb": "int", "gpu_models": "text[]", "gpu_sharing": "text", "cpu_milli": "int", "memory_mb": "bigint",
    "gang_scheduling": "bool", "ranks": "int", "workload_class": "text", "max_runtime_seconds": "int",
    "has_default_limit": "bool", "gpu_memory_auto": "jsonb",
    "preemptible": "bool", "requeue": "bool", "max_retries": "int", "retry_on": "text[]", "grace_seconds": "int",
    "not_before": "timestamptz", "labels": "jsonb", "node_selector": "jsonb", "payload": "jsonb",
    "node_affinity": "jsonb", "tolerations": "jsonb",
    "eligible_at": "timestamptz", "predicted_seconds": "int", "topology": "text", "anti_affinity": "text",
    "reservation": "bigint",
    "depends_on": "jsonb", "open_dependencies": "int", "reason": "text", "evidence": "jsonb",
    "array_count": "int", "array_max_parallel": "int", "array_waiting": "int4multirange",
    "array_cancelled": "int4multirange", "traceparent": "text",
}  # fmt: skip


def _new_jobs_sql(rows: str, names: str) -> str:
    """Build the INSERT of pending jobs from `rows`, a FROM clause with the columns `names`."""
    return f"""
        INSERT INTO jobs_job ({names}, state, attempt, retries_used, reason_since, submitted_at, stop_reason,
                              stop_evidence)
        SELECT {names}, 'pending', 0, 0, statement_timestamp(), statement_timestamp(), '', '{{}}'
          FROM {rows}
        RETURNING id, submitted_at, evidence"""


def _recordset(names: Iterable[str]) -> str:
    # jsonb, although it is only read once: from json, PostgreSQL would parse the jsonb columns twice.
    return f"jsonb_to_recordset(%(rows)s::jsonb) AS row ({_typed_columns(names)})"


def _typed_columns(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_COLUMNS.get(name, 'bigint')}" for name in names)


_EVENT = insert_sql(
    "'submitted'", "new", at="submitted_at", attempt="0", actor="%(actor)s::text", via="%(via)s::text", data="evidence"
)


# Inserts nothing for an archived tenant. The lock is the foreign key's: it waits for a concurrent archiving, and then
# PostgreSQL evaluates the condition again.
_IS_OPEN = "tenant_id IN (SELECT id FROM open)"


_OPEN = """
    open AS MATERIALIZED (
        SELECT id FROM tenants_all WHERE id = %(tenant_id)s::bigint AND archived_at IS NULL FOR KEY SHARE)"""


_ROW, _NAMES = _recordset(_COLUMNS), ", ".join(_COLUMNS)


_NEW = _new_jobs_sql(f"{_ROW} WHERE {_IS_OPEN} AND {IS_CURRENT}", _NAMES)


_INSERT = f"""
    WITH {_OPEN},
    new AS ({_NEW}),
    event AS ({_EVENT})
    SELECT id, submitted_at FROM new
"""


# Inserts nothing if the caller has used the key for a request other than a submit.
_NEW_ONCE = _new_jobs_sql(f"{_ROW} WHERE {_IS_OPEN} AND {IS_CURRENT} AND NOT {idempotency.KEY_IN_USE}", _NAMES)


_INSERT_ONCE = f"""
    WITH {_OPEN},
    new AS ({_NEW_ONCE}),
    event AS ({_EVENT}),
    claim AS (
        INSERT INTO jobs_idempotencykey (user_id, key, request_hash, job_id, created_at)
        SELECT %(user_id)s::int, %(key)s::text, %(request_hash)s::text, id, submitted_at FROM new)
    SELECT id, submitted_at FROM new
"""


# Materialised: looking up the sequence's name for each id would cost four times as much as the id.
_NEW_IDS = """
    WITH job_ids AS MATERIALIZED (SELECT pg_get_serial_sequence('jobs_job', 'id')::regclass AS ids)
    SELECT nextval(job_ids.ids) AS id FROM job_ids, generate_series(1, %s)
"""


def insert_job(
    row: dict[str, Any], identity: Identity, key: str = "", request_hash: str = "", generation: int | None = None
) -> tuple[int, datetime]:
    """Insert a pending job (a dictionary by the columns above), its first event and its idempotency key in one
    statement: one round trip, one commit. Return its id and queue time.

    Raise IntegrityError if a submit has used the key; if that one is in progress, only once it is durable. 409 if
    another request has used the key, and for an archived tenant. CountIsStale for a `generation` that is not the
    tenant's current one (jobs/submit/queue_locks.py)."""
    params = {"rows": as_json([row]), "actor": identity.username, "via": identity.via, "tenant_id": row["tenant_id"]}
    params["generation"] = generation
    if key:
        params |= {"user_id": row["user_id"], "key": key, "request_hash": request_hash}
        params["caller"] = idempotency.caller_of(identity)
    rows = prepared(_INSERT_ONCE if key else _INSERT, params)
    if not rows:
        archived.lock_open([row["tenant_id"]])
        if generation is not None:
            raise CountIsStale
        raise idempotency.key_reused()
    [new] = rows
    events.changed("jobs", [new["id"]])
    wake.request_cycle()
    return new["id"], new["submitted_at"]


def new_ids(number: int) -> list[int]:
    """Reserve ids for `number` jobs, ascending."""
    return sorted(row["id"] for row in query(_NEW_IDS, [number]))


def insert_jobs(rows: Sequence[dict[str, Any]], identity: Identity, differing: Sequence[str] = ()) -> None:
    """Insert rows that have an `id` of `new_ids`, without keys, in a transaction that has locked their tenants open
    (tenants/tenancy/archived.py).

    Columns with equal values are sent and parsed once: most jobs of a sweep differ in a few columns. `differing`: all
    columns that may differ, if known."""
    first = rows[0]
    varying = differing or [name for name in first if any(row[name] != first[name] for row in rows)] or ["id"]
    common = [name for name in first if name not in varying]
    source = _recordset(varying)
    if common:
        source += f", jsonb_to_record(%(common)s::jsonb) AS common ({_typed_columns(common)})"
    params = {
        "rows": as_json([{name: row[name] for name in varying} for row in rows]),
        "common": as_json({name: first[name] for name in common}),
    }
    prepared(
        f"WITH new AS ({_new_jobs_sql(source, ', '.join([*varying, *common]))}) {_EVENT}",
        {**params, "actor": identity.username, "via": identity.via},
    )
    events.changed("jobs", [row["id"] for row in rows])
    wake.request_cycle()


# The scheduler adds to this date, which must stay within the range of dates.
MAX_DAYS_AHEAD = 36_525


def resolve_tenant(request: JobRequest, identity: Identity) -> tuple[int, str]:
    """Return the id and name of a request's tenant; refuse a caller who must not submit for it."""
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
    raise invalid([FieldError("tenant", "required", f"tenant is required; your tenants: {mine}")])


def _tenant_named(name: str, identity: Identity) -> tuple[int, bool]:
    for tenant_id, tenant_name in identity.tenant_names.items():
        if name == tenant_name:
            return tenant_id, tenant_id in identity.archived
    may_ask = identity.is_admin and "\x00" not in name
    sql = "SELECT id, archived_at IS NOT NULL AS is_archived FROM tenants_all WHERE name = %s"
    rows = prepared(sql, [name]) if may_ask else []
    if not rows:
        raise not_found(f"tenant '{name}'")
    return rows[0]["id"], rows[0]["is_archived"]


def job_row(
    request: JobRequest, tenant_id: int, identity: Identity, memory_choice: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the columns that `insert_job` takes, of a valid request. `memory_choice`: its amount of GPU memory was
    chosen so (jobs/submit/auto_memory.py)."""
    not_before = _not_before(request.not_before)
    default_minutes = identity.default_minutes.get(tenant_id) if request.max_runtime_minutes is None else None
    return {
        "tenant_id": tenant_id,
        "user_id": identity.user_id,
        "name": request.name or _default_name(request),
        "priority": request.priority,
        "gpu_count": request.gpu_count,
        "gpu_memory_mb": request.fixed_gpu_memory_mb,
        "gpu_memory_auto": memory_choice,
        "gpu_models": request.gpu_models,
        "gpu_sharing": request.gpu_sharing,
        "cpu_milli": math.ceil(request.cpu_cores * 1000),
        "memory_mb": request.memory_mb,
        "gang_scheduling": request.gang_scheduling,
        "ranks": request.ranks,
        "workload_class": request.workload_class,
        "max_runtime_seconds": _seconds(request.max_runtime_minutes or default_minutes),
        "has_default_limit": default_minutes is not None,
        "predicted_seconds": _seconds(request.predicted_runtime_minutes),
        "preemptible": request.preemptible,
        "requeue": request.requeue,
        "max_retries": request.max_retries,
        "retry_on": sorted(set(request.retry_on)),
        "grace_seconds": request.grace_seconds,
        "not_before": not_before,
        "eligible_at": not_before,
        "depends_on": [{"job": dependency.job, "kind": dependency.kind} for dependency in request.dependencies],
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
        "reservation": request.reservation,
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
    """Return the fields that only the agents read."""
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


# The columns that hold gpusched.protocol.bulk.VARYING_FIELDS.
VARYING_COLUMNS = ("name", "payload")


def vary_row(row: dict[str, Any], request: JobRequest) -> dict[str, Any]:
    """Return the row of a request that differs from `row`'s at most in protocol.bulk.VARYING_FIELDS."""
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
