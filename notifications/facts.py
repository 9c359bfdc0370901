"""Read what a message says about a job: its name, how it ended, and the last lines of its log."""

import logging
import re
from collections.abc import Sequence
from typing import Any

from gpusched.lib.db.sql import columns, query
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from gpusched.protocol.times import format_duration
from jobs.logs import store
from jobs.redaction import visible_evidence

logger = logging.getLogger(__name__)
LOG_LINES, _LOG_BYTES, _MAX_LINE = 20, 16_384, 300
_JOBS = """
    SELECT j.id, w.number, j.name, t.name AS tenant, p.username AS "user", j.gpu_count, j.max_runtime_seconds,
           a.started_at, a.ended_at, a.exit_code, a.signal, a.evidence, a.log_dropped_at,
           (SELECT array_agg(DISTINCT r->>'node') FROM jsonb_array_elements(a.placement) r) AS nodes,
           to_char((j.started_at + make_interval(secs => j.max_runtime_seconds)) AT TIME ZONE 'UTC',
                   'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS ends_at
      FROM unnest(%s::bigint[], %s::int[]) AS w (id, number) JOIN jobs_all j ON j.id = w.id
      JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people p ON p.id = j.user_id
      LEFT JOIN jobs_attempts a ON a.job_id = j.id AND a.number = w.number
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def of_jobs(attempts: Sequence[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Return facts by (job, attempt). A job that retention has deleted is absent."""
    rows = query(_JOBS, columns(attempts, 2)) if attempts else []
    return {(row["id"], row["number"]): row for row in rows}


def job_data(row: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return what a notice of a job reports, as plain values: for webhooks, and for the text."""
    evidence = visible_evidence(data.get("evidence") or {})
    seconds = (row["ended_at"] - row["started_at"]).total_seconds() if row["ended_at"] and row["started_at"] else None
    facts: dict[str, Any] = {
        "job_id": row["id"],
        "name": row["name"],
        "tenant": row["tenant"],
        "user": row["user"],
        "attempt": data.get("attempt"),
        "state": data.get("state"),
        "reason": data.get("reason"),
        "sentence": _sentence(data, evidence),
        "class": evidence.get("class"),
        "exit_code": evidence.get("exit_code"),
        "next_step": reasons.next_step(str(data.get("reason")), evidence),
        "gpus": row["gpu_count"],
        "nodes": row["nodes"] or [],
        "started_at": rfc3339(row["started_at"]),
        "ended_at": rfc3339(row["ended_at"]),
        "ran": None if seconds is None else format_duration(max(0.0, seconds)),
        "requeued": bool(data.get("requeued")),
    }
    return facts


def log_tail(row: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """Return the last lines of the log of the rank that failed, without control characters; none if it was deleted.
    A storage that fails delays no message: a line of the result says so."""
    if row["log_dropped_at"] or not data.get("attempt"):
        return []
    rank = (data.get("evidence") or {}).get("rank")
    number = rank if isinstance(rank, int) else 0
    try:
        chunk = store.read(row["id"], data["attempt"], number, -_LOG_BYTES, _LOG_BYTES)
    except Exception as error:  # noqa: BLE001 each storage raises its own; the failure is reported all the same
        logger.warning("a message has no log of job %s, which cannot be read: %r", row["id"], error)
        return ["[gpusched: the log cannot be read now]"]
    text = _CONTROL.sub("", chunk.data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"))
    return [line[:_MAX_LINE] for line in text.rstrip("\n").split("\n")[-LOG_LINES:]] if text.strip() else []


def _sentence(data: dict[str, Any], evidence: dict[str, Any]) -> str:
    reason = data.get("reason")
    return reasons.sentence(str(reason), evidence) if reason else ""
