"""Represent a job for the API, the page and the events."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from gpusched.protocol.job_request import user_labels
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import FINAL, WAITING, JobState, LimitSource
from jobs.lifecycle import dependencies
from jobs.redaction import visible_evidence

# Put into reports of use, which name jobs (HOOKS in gpusched/settings.py).
NAMES = "SELECT id, name FROM jobs_job"
_SELECT = """
    SELECT j.*, t.name AS tenant, u.username AS "user", a.placement, a.ranks AS attempt_ranks,
           whole.payload AS whole_payload, jobs_numbers(j.array_waiting) AS elements_waiting,
           jobs_numbers(j.array_cancelled) AS elements_cancelled
      FROM jobs_job j
      JOIN tenants_all t ON t.id = j.tenant_id
      JOIN tenants_people u ON u.id = j.user_id
      LEFT JOIN jobs_attempt a ON a.job_id = j.id AND a.number = j.attempt
      LEFT JOIN jobs_job whole ON whole.id = j.array_id
"""


# A page ends after this many bytes of payloads: the scripts of 1,000 jobs may take a gigabyte.
MAX_PAGE_BYTES = 8 << 20
_PAYLOAD = "coalesce(whole_payload, payload)"
_EARLIER = "(ORDER BY id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"


def _bytes_earlier(of_compressed: str) -> str:
    is_plain = f"pg_column_compression({_PAYLOAD}) IS NULL"
    size = f"CASE WHEN {is_plain} THEN pg_column_size({_PAYLOAD}) ELSE {of_compressed} END"
    return f"sum({size}) OVER {_EARLIER}"


# First by the stored sizes, which reads no payload (a compressed one may grow 90 times and is taken for 16 times), then
# measured.
_ABOUT_EARLIER = _bytes_earlier(f"16 * pg_column_size({_PAYLOAD})")
_MEASURED_EARLIER = _bytes_earlier(f"octet_length({_PAYLOAD}::text)")


def newest_page(condition: str, params: Sequence[Any], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return at most `limit` matching jobs, newest first, and whether the page is full, by number or by the size of
    their payloads. An estimate drops what is certainly too much; only the rest is measured."""
    rows = query(
        f"""SELECT * FROM (
                SELECT near.*, {_MEASURED_EARLIER} AS bytes_earlier
                  FROM (SELECT found.*, count(*) OVER () AS found_jobs, {_ABOUT_EARLIER} AS about_earlier
                          FROM ({_SELECT} WHERE {condition} ORDER BY j.id DESC LIMIT %s) found) near
                 WHERE coalesce(about_earlier, 0) < {MAX_PAGE_BYTES}) page
             WHERE coalesce(bytes_earlier, 0) < {MAX_PAGE_BYTES} ORDER BY id DESC""",
        [*params, limit],
    )
    return _represent_all(rows), bool(rows) and (len(rows) == limit or len(rows) < rows[0]["found_jobs"])


def select(condition: str, params: Sequence[Any], tail: str = "") -> list[dict[str, Any]]:
    """Return the jobs (alias j, with t and u) that match a condition, represented."""
    return _represent_all(query(f"{_SELECT} WHERE {condition} {tail}", params))


def select_few(job_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return these jobs, represented. The next step of one that waits for a held job names that one."""
    rows = query(f"{_SELECT} WHERE j.id = ANY(%s)", [list(job_ids)])
    for row in rows:
        if row["reason"] == Pending.DEPENDENCY:
            row["evidence"] |= dependencies.held_before(row["id"])
    return _represent_all(rows)


def _represent_all(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    elements = elements_by_state([row["id"] for row in rows if row["array_count"] is not None])
    return [represent(row, elements.get(row["id"], {})) for row in rows]


def elements_by_state(array_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Return {array: {state: number of elements that are jobs}}."""
    counts: dict[int, dict[str, int]] = {}
    sql = "SELECT array_id, state, count(*) AS n FROM jobs_job WHERE array_id = ANY(%s) GROUP BY array_id, state"
    for row in query(sql, [list(array_ids)]) if array_ids else []:
        counts.setdefault(row["array_id"], {})[row["state"]] = row["n"]
    return counts


def array(row: dict[str, Any], elements: Mapping[str, int]) -> dict[str, Any] | None:
    """Represent an array's progress: `by_state` counts each element once. `elements`: those that are jobs."""
    if row["array_count"] is None:
        return None
    waits_as = JobState.HELD if row["state"] == JobState.HELD else JobState.PENDING
    not_jobs = {waits_as: row["elements_waiting"], JobState.CANCELLED: row["elements_cancelled"]}
    counts = {state: elements.get(state, 0) + not_jobs.get(state, 0) for state in JobState}
    if row["state"] in FINAL and row["evidence"].keys() >= FINAL:
        # The counts of its end: retention deletes a large array's elements over several runs (jobs/retention.py).
        counts |= {state: row["evidence"][state] for state in FINAL}
    return {
        "count": row["array_count"],
        "max_parallel": row["array_max_parallel"],
        "remaining": sum(counts[state] for state in WAITING),
        "by_state": {str(state): number for state, number in counts.items() if number},
    }


def represent(row: dict[str, Any], elements: Mapping[str, int]) -> dict[str, Any]:
    """Return a row of `_SELECT` as the job's public shape (docs/rest.md). `elements`: as in `array`."""
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
        "gpu_memory_auto": _memory_choice(row),
        "gpu_model": "|".join(row["gpu_models"]) or None,
        "gpu_sharing": row["gpu_sharing"],
        "cpu_cores": row["cpu_milli"] / 1000,
        "memory_mb": row["memory_mb"],
        **_program(row["whole_payload"] or row["payload"]),
        "gang_scheduling": row["gang_scheduling"],
        "ranks": row["ranks"],
        "workload_class": row["workload_class"],
        "max_runtime_minutes": None if row["max_runtime_seconds"] is None else row["max_runtime_seconds"] / 60,
        "max_runtime_source": _limit_source(row),
        "predicted_runtime_minutes": None if row["predicted_seconds"] is None else row["predicted_seconds"] / 60,
        "predicted": None,
        "preemptible": row["preemptible"],
        "requeue": row["requeue"],
        "max_retries": row["max_retries"],
        "retry_on": row["retry_on"],
        "grace_seconds": row["grace_seconds"],
        "not_before": rfc3339(row["not_before"]),
        "depends_on": row["depends_on"],
        "array": array(row, elements),
        "array_id": row["array_id"],
        "array_index": row["array_index"],
        "labels": row["labels"],
        "node_selector": user_labels(row["node_selector"]),
        "node_affinity": row["node_affinity"] or None,
        "tolerations": row["tolerations"],
        "anti_affinity": row["anti_affinity"] or None,
        "topology": row["topology"],
        "reservation": row["reservation"],
        **_execution(row),
    }


def _memory_choice(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the server's choice of GPU memory; None if the submitter set the amount."""
    choice = row["gpu_memory_auto"]
    if choice is None:
        return None
    return {**{name: choice[name] for name in ("gpu_memory_mb", "n", "source")}, "retries": row["memory_retries"]}


def _limit_source(row: dict[str, Any]) -> str | None:
    """Return where a job's time limit comes from; None without a limit."""
    if row["max_runtime_seconds"] is None:
        return None
    if row["limit_version"]:
        return LimitSource.CHANGED
    return LimitSource.TENANT if row["has_default_limit"] else LimitSource.REQUEST


def _program(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the program and its container."""
    return {
        "command": payload["command"],
        "args": payload["args"],
        "script": payload["script"],
        "workdir": payload["workdir"],
        "environment": payload["environment"],
        "secrets": payload.get("secrets", []),
        # Jobs from before containers lack these.
        "image": payload.get("image"),
        "runtime": payload.get("runtime", "auto"),
        "mounts": payload.get("mounts", []),
    }


def _execution(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the job's progress and nodes."""
    placement = row["placement"] or []
    return {
        "attempt": row["attempt"],
        "retries_used": row["retries_used"],
        "submitted_at": rfc3339(row["submitted_at"]),
        "started_at": rfc3339(row["started_at"]),
        "deadline_at": rfc3339(deadline(row)),
        "ended_at": rfc3339(row["ended_at"]),
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "nodes": sorted({rank["node"] for rank in placement}),
        "devices": [{"node": rank["node"], **device} for rank in placement for device in rank["devices"]],
    }


def deadline(row: dict[str, Any]) -> datetime | None:
    """Return when a running job reaches its current time limit; None without a limit or while it does not run. Arrays
    have none: each element has its own."""
    seconds, started_at = row["max_runtime_seconds"], row["started_at"]
    if row["state"] != JobState.RUNNING or row["array_count"] is not None or seconds is None or started_at is None:
        return None
    return cast(datetime, started_at + timedelta(seconds=seconds))


_NEW_JOB = {
    "state": "pending", "attempt": 0, "retries_used": 0, "started_at": None, "ended_at": None, "exit_code": None,
    "signal": None, "limit_version": 0, "memory_retries": 0, "stop_reason": "", "stop_evidence": {}, "placement": [],
    "array_id": None, "array_index": None, "elements_cancelled": 0, "whole_payload": None,
}  # fmt: skip


def represent_new(
    inserted: dict[str, Any], job_id: int, submitted_at: datetime, tenant: str, user: str
) -> dict[str, Any]:
    """Represent a job that was just inserted, without reading it back."""
    names = {"id": job_id, "submitted_at": submitted_at, "reason_since": submitted_at, "tenant": tenant, "user": user}
    return represent({**inserted, **_NEW_JOB, "elements_waiting": inserted["array_count"], **names}, {})


def reason(row: dict[str, Any]) -> dict[str, Any] | None:
    """Represent the reason of a job's state; of a stopping job, why it stops. None while it just runs."""
    code, evidence = row["reason"], row["evidence"]
    if row["stop_reason"]:
        code, evidence = row["stop_reason"], row["stop_evidence"]
    if not code:
        return None
    evidence = {**_job_evidence(code, row), **visible_evidence(evidence)}
    return {
        "code": code,
        "sentence": reasons.sentence(code, {"node": "its node", **evidence}),
        "next_step": reasons.next_step(code, evidence),
        "evidence": evidence,
        "since": rfc3339(row["reason_since"]),
    }


def _job_evidence(code: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the job's own values that the sentence of this reason names."""
    seconds = row["max_runtime_seconds"]
    known_values = {
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "max_runtime_minutes": None if seconds is None else round(seconds / 60, 2),
        "node": ", ".join(sorted({rank["node"] for rank in row["placement"] or []})) or None,
    }
    named = reasons.evidence_fields(code)
    return {name: value for name, value in known_values.items() if value is not None and name in named}
