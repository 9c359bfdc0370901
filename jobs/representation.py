"""A job as the API, the page and the events show it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpusched.lib.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from gpusched.protocol.jobs import asked_labels

_SELECT = """
    SELECT j.*, t.name AS tenant, u.username AS "user", a.placement, a.ranks AS attempt_ranks
      FROM jobs_job j
      JOIN tenants_tenant t ON t.id = j.tenant_id
      JOIN auth_user u ON u.id = j.user_id
      LEFT JOIN jobs_attempt a ON a.job_id = j.id AND a.number = j.attempt
"""


def select(where: str, params: Sequence[Any], tail: str = "") -> list[dict[str, Any]]:
    """Jobs (aliased j, with t and u) that meet a condition, represented."""
    return [represent(row) for row in query(f"{_SELECT} WHERE {where} {tail}", params)]


def represent(row: dict[str, Any]) -> dict[str, Any]:
    """One row of `_SELECT` as the job's public shape (docs/rest.md)."""
    payload = row["payload"]
    placement = row["placement"] or []
    return {
        "id": row["id"],
        "tenant": row["tenant"],
        "user": row["user"],
        "name": row["name"],
        "state": row["state"],
        "reason": reason(row),
        "priority": row["priority"],
        "gpu_count": row["gpu_count"],
        "gpu_memory_mb": row["gpu_memory_mb"],
        "gpu_model": "|".join(row["gpu_models"]) or None,
        "gpu_sharing": row["gpu_sharing"],
        "cpu_cores": row["cpu_milli"] / 1000,
        "memory_mb": row["memory_mb"],
        "command": payload["command"],
        "args": payload["args"],
        "script": payload["script"],
        "workdir": payload["workdir"],
        "environment": payload["environment"],
        "secrets": payload.get("secrets", []),
        # Jobs of before there were containers say nothing of them.
        "image": payload.get("image"),
        "runtime": payload.get("runtime", "auto"),
        "mounts": payload.get("mounts", []),
        "gang_scheduling": row["gang_scheduling"],
        "ranks": row["ranks"],
        "workload_class": row["workload_class"],
        "max_runtime_minutes": None if row["max_runtime_seconds"] is None else row["max_runtime_seconds"] / 60,
        "predicted_runtime_minutes": None if row["predicted_seconds"] is None else row["predicted_seconds"] / 60,
        "preemptible": row["preemptible"],
        "requeue": row["requeue"],
        "max_retries": row["max_retries"],
        "retry_on": row["retry_on"],
        "grace_seconds": row["grace_seconds"],
        "not_before": rfc3339(row["not_before"]),
        "depends_on": row["depends_on"],
        "labels": row["labels"],
        "node_selector": asked_labels(row["node_selector"]),
        "anti_affinity": row["anti_affinity"] or None,
        "topology": row["topology"],
        "attempt": row["attempt"],
        "retries_used": row["retries_used"],
        "submitted_at": rfc3339(row["submitted_at"]),
        "started_at": rfc3339(row["started_at"]),
        "ended_at": rfc3339(row["ended_at"]),
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "nodes": sorted({rank["node"] for rank in placement}),
        "devices": [{"node": rank["node"], **device} for rank in placement for device in rank["devices"]],
    }


_UNBORN = {
    "state": "pending", "attempt": 0, "retries_used": 0, "started_at": None, "ended_at": None, "exit_code": None,
    "signal": None, "stop_reason": "", "stop_evidence": {}, "placement": [],
}  # fmt: skip


def fresh(inserted: dict[str, Any], job_id: int, submitted_at: datetime, tenant: str, user: str) -> dict[str, Any]:
    """A job that was inserted this moment, without asking the database again."""
    names = {"id": job_id, "submitted_at": submitted_at, "reason_since": submitted_at, "tenant": tenant, "user": user}
    return represent({**inserted, **_UNBORN, **names})


def reason(row: dict[str, Any]) -> dict[str, Any] | None:
    """Why the job is where it is: for a stopping job what stops it, else its own reason; None while it just runs."""
    code, evidence = row["reason"], row["evidence"]
    if row["stop_reason"]:
        code, evidence = row["stop_reason"], row["stop_evidence"]
    if not code:
        return None
    evidence = {**_own_evidence(row), **evidence}
    return {
        "code": code,
        "sentence": reasons.sentence(code, evidence),
        "next_step": reasons.next_step(code, evidence),
        "evidence": evidence,
        "since": rfc3339(row["reason_since"]),
    }


def _own_evidence(row: dict[str, Any]) -> dict[str, Any]:
    """What a reason may name that stands in the job itself."""
    nodes = sorted({rank["node"] for rank in row["placement"] or []})
    seconds = row["max_runtime_seconds"]
    return {
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "max_runtime_minutes": None if seconds is None else round(seconds / 60, 2),
        "node": ", ".join(nodes) or "its node",
    }
