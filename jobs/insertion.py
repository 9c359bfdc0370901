"""Writes new jobs, one or thousands by one statement; from then on jobs/transitions.py alone writes their state."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpusched.lib import events, wake
from gpusched.lib.sql import as_json, prepared, query

_COLUMNS = {
    "tenant_id": "bigint", "user_id": "bigint", "name": "text", "priority": "int", "gpu_count": "int",
    "gpu_memory_mb": "int", "gpu_models": "text[]", "gpu_sharing": "text", "cpu_milli": "int", "memory_mb": "bigint",
    "gang_scheduling": "bool", "ranks": "int", "workload_class": "text", "max_runtime_seconds": "int",
    "preemptible": "bool", "requeue": "bool", "max_retries": "int", "retry_on": "text[]", "grace_seconds": "int",
    "not_before": "timestamptz", "labels": "jsonb", "node_selector": "jsonb", "payload": "jsonb",
    "eligible_at": "timestamptz", "predicted_seconds": "int", "topology": "text", "anti_affinity": "text",
    "depends_on": "jsonb", "open_dependencies": "int", "reason": "text", "evidence": "jsonb",
}  # fmt: skip


def _new(*more: str) -> str:
    """The statement part that makes pending jobs of `rows`, a JSON array of objects by the columns above and `more`."""
    names = ", ".join([*_COLUMNS, *more])
    types = ", ".join(f"{name} {kind}" for name, kind in {**_COLUMNS, **dict.fromkeys(more, "bigint")}.items())
    return f"""
        INSERT INTO jobs_job ({names}, state, attempt, retries_used, reason_since, submitted_at, stop_reason,
                              stop_evidence)
        SELECT {names}, 'pending', 0, 0, statement_timestamp(), statement_timestamp(), '', '{{}}'
          FROM json_to_recordset(%(rows)s::json) AS row ({types})
        RETURNING id, submitted_at, evidence"""


_EVENT = """
        INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)
        SELECT id, submitted_at, 'submitted', 0, %(actor)s::text, evidence FROM new"""
_INSERT = f"""
    WITH new AS ({_new()}),
    event AS ({_EVENT}),
    claim AS (
        INSERT INTO jobs_idempotencykey (user_id, key, request_hash, job_id, created_at)
        SELECT %(user_id)s::int, %(key)s::text, %(request_hash)s::text, id, submitted_at FROM new
         WHERE %(key)s::text <> '')
    SELECT id, submitted_at, pg_notify('{wake.CHANNEL}', ''),
           pg_notify('{events.CHANNEL}', json_build_object('jobs', json_build_array(id))::text)
      FROM new
"""
_INSERT_ALL = f"WITH new AS ({_new('id')}) {_EVENT}"


def insert(row: dict[str, Any], actor: str, key: str = "", request_hash: str = "") -> tuple[int, datetime]:
    """Writes a new pending job (a dictionary by the columns above), its first event, its idempotency key and both
    notifications in one statement: one round trip, one commit. Gives its id and queue time.

    IntegrityError when the key has been used; if by a submit that is under way, only after that one is durable."""
    own = {"actor": actor, "user_id": row["user_id"], "key": key, "request_hash": request_hash}
    [new] = prepared(_INSERT, {"rows": as_json([row]), **own})
    return new["id"], new["submitted_at"]


def new_ids(number: int) -> list[int]:
    """Ids for so many jobs, ascending."""
    rows = query("SELECT nextval(pg_get_serial_sequence('jobs_job', 'id')) AS id FROM generate_series(1, %s)", [number])
    return sorted(row["id"] for row in rows)


def insert_all(rows: Sequence[dict[str, Any]], actor: str) -> None:
    """The same for rows that have an `id` (of `new_ids`), without keys. In a transaction."""
    prepared(_INSERT_ALL, {"rows": as_json(rows), "actor": actor})
    events.changed("jobs", [row["id"] for row in rows])
    wake.request_cycle()
