"""Insert new jobs, one or thousands by one statement. Afterwards only jobs/lifecycle/states.py writes their state."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import as_json, prepared, query
from jobs.submit import idempotency
from jobs.submit.queue_locks import IS_CURRENT, CountIsStale
from tenants.auth.identity import Identity
from tenants.tenancy import archived

_COLUMNS = {
    "tenant_id": "bigint", "user_id": "bigint", "name": "text", "priority": "int", "gpu_count": "int",
    "gpu_memory_mb": "int", "gpu_models": "text[]", "gpu_sharing": "text", "cpu_milli": "int", "memory_mb": "bigint",
    "gang_scheduling": "bool", "ranks": "int", "workload_class": "text", "max_runtime_seconds": "int",
    "preemptible": "bool", "requeue": "bool", "max_retries": "int", "retry_on": "text[]", "grace_seconds": "int",
    "not_before": "timestamptz", "labels": "jsonb", "node_selector": "jsonb", "payload": "jsonb",
    "node_affinity": "jsonb", "tolerations": "jsonb",
    "eligible_at": "timestamptz", "predicted_seconds": "int", "topology": "text", "anti_affinity": "text",
    "depends_on": "jsonb", "open_dependencies": "int", "reason": "text", "evidence": "jsonb",
    "array_count": "int", "array_max_parallel": "int", "array_waiting": "int4multirange",
    "array_cancelled": "int4multirange", "traceparent": "text",
}  # fmt: skip


def _new(rows: str, names: str) -> str:
    """The statement part that makes pending jobs of `rows`, a FROM clause with the columns `names`."""
    return f"""
        INSERT INTO jobs_job ({names}, state, attempt, retries_used, reason_since, submitted_at, stop_reason,
                              stop_evidence)
        SELECT {names}, 'pending', 0, 0, statement_timestamp(), statement_timestamp(), '', '{{}}'
          FROM {rows}
        RETURNING id, submitted_at, evidence"""


def _recordset(names: Iterable[str]) -> str:
    # jsonb, though it is read as rows at once: of json, what becomes a jsonb column is parsed twice.
    return f"jsonb_to_recordset(%(rows)s::jsonb) AS row ({_typed(names)})"


def _typed(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_COLUMNS.get(name, 'bigint')}" for name in names)


_EVENT = """
        INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, via, data)
        SELECT id, submitted_at, 'submitted', 0, %(actor)s::text, %(via)s::text, evidence FROM new"""
# Nothing, if the tenant is archived. The lock is the one that the foreign key takes: where somebody is archiving the
# tenant at this moment, it waits, and the condition is asked again.
_IS_OPEN = "tenant_id IN (SELECT id FROM open)"
_OPEN = """
    open AS MATERIALIZED (
        SELECT id FROM tenants_tenant WHERE id = %(tenant_id)s::bigint AND archived_at IS NULL FOR KEY SHARE)"""
_ROW, _NAMES = _recordset(_COLUMNS), ", ".join(_COLUMNS)
_NEW = _new(f"{_ROW} WHERE {_IS_OPEN} AND {IS_CURRENT}", _NAMES)
_INSERT = f"""
    WITH {_OPEN},
    new AS ({_NEW}),
    event AS ({_EVENT})
    SELECT id, submitted_at FROM new
"""
# Nothing, if the caller has used the key for something else than a submit.
_NEW_ONCE = _new(f"{_ROW} WHERE {_IS_OPEN} AND {IS_CURRENT} AND NOT {idempotency.KEY_IN_USE}", _NAMES)
_INSERT_ONCE = f"""
    WITH {_OPEN},
    new AS ({_NEW_ONCE}),
    event AS ({_EVENT}),
    claim AS (
        INSERT INTO jobs_idempotencykey (user_id, key, request_hash, job_id, created_at)
        SELECT %(user_id)s::int, %(key)s::text, %(request_hash)s::text, id, submitted_at FROM new)
    SELECT id, submitted_at FROM new
"""


# Materialised: the sequence's name would be looked up for each id, which costs four times what the id does.
_NEW_IDS = """
    WITH own AS MATERIALIZED (SELECT pg_get_serial_sequence('jobs_job', 'id')::regclass AS ids)
    SELECT nextval(own.ids) AS id FROM own, generate_series(1, %s)
"""


def insert_job(
    row: dict[str, Any], who: Identity, key: str = "", request_hash: str = "", generation: int | None = None
) -> tuple[int, datetime]:
    """Writes a new pending job (a dictionary by the columns above), its first event, and its idempotency key in one
    statement: one round trip, one commit. Gives its id and queue time.

    IntegrityError when the key has been used for a submit; if by one that is under way, only after that one is durable.
    409 when it has been used for something else, and for a tenant that is archived. CountIsStale for a `generation`
    that is not the tenant's current one (jobs/submit/queue_locks.py)."""
    given = {"rows": as_json([row]), "actor": who.username, "via": who.via, "tenant_id": row["tenant_id"]}
    given["generation"] = generation
    if key:
        given |= {"user_id": row["user_id"], "key": key, "request_hash": request_hash}
        given["caller"] = idempotency.caller_of(who)
    made = prepared(_INSERT_ONCE if key else _INSERT, given)
    if not made:
        archived.lock_open([row["tenant_id"]])
        if generation is not None:
            raise CountIsStale
        raise idempotency.reused()
    [new] = made
    events.changed("jobs", [new["id"]])
    wake.request_cycle()
    return new["id"], new["submitted_at"]


def new_ids(number: int) -> list[int]:
    """Ids for so many jobs, ascending."""
    return sorted(row["id"] for row in query(_NEW_IDS, [number]))


def insert_jobs(rows: Sequence[dict[str, Any]], who: Identity, differing: Sequence[str] = ()) -> None:
    """The same for rows that have an `id` (of `new_ids`), without keys. In a transaction that has locked their tenants
    open (tenants/tenancy/archived.py).

    What all rows have in common is sent and read once: most jobs of a sweep differ in a few columns. `differing`: all
    in which they may, if that is known."""
    first = rows[0]
    own = differing or [name for name in first if any(row[name] != first[name] for row in rows)] or ["id"]
    common = [name for name in first if name not in own]
    source = _recordset(own) + (f", jsonb_to_record(%(common)s::jsonb) AS common ({_typed(common)})" if common else "")
    sent = {
        "rows": as_json([{name: row[name] for name in own} for row in rows]),
        "common": as_json({name: first[name] for name in common}),
    }
    prepared(
        f"WITH new AS ({_new(source, ', '.join([*own, *common]))}) {_EVENT}",
        {**sent, "actor": who.username, "via": who.via},
    )
    events.changed("jobs", [row["id"] for row in rows])
    wake.request_cycle()
