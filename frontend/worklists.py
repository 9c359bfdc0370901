"""The rows of topics `queue` and `jobs`: the first jobs that wait, and the latest jobs of all states."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpusched.lib.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from jobs import representation

Row = dict[str, Any]
QUEUE_ROWS = 500
JOBS_ROWS = 200
ANOTHERS = "of another tenant"

_COLUMNS = """
    j.id, j.name, j.tenant_id, t.name AS tenant, u.username AS "user", j.state, j.gpu_count, j.gpu_models,
    j.gpu_memory_mb, j.priority, j.attempt, j.submitted_at, j.started_at, j.ended_at, j.exit_code, j.signal, j.reason,
    j.evidence, j.reason_since, j.stop_reason, j.stop_evidence, j.max_runtime_seconds
"""
_JOINS = "JOIN tenants_tenant t ON t.id = j.tenant_id JOIN auth_user u ON u.id = j.user_id"
# The same order as GET /api/v1/queue.
_QUEUE = f"""
    WITH waiting AS (
        SELECT id, row_number() OVER everybody AS position, row_number() OVER own AS among_own
          FROM jobs_job WHERE state IN ('pending', 'held')
        WINDOW everybody AS (ORDER BY priority DESC, submitted_at, id),
               own AS (PARTITION BY tenant_id ORDER BY priority DESC, submitted_at, id))
    SELECT {_COLUMNS}, NULL AS placement, w.position
      FROM waiting w JOIN jobs_job j ON j.id = w.id {_JOINS}
     WHERE w.position <= %(most)s OR (j.tenant_id = ANY(%(tenants)s) AND w.among_own <= %(most)s)
     ORDER BY w.position
"""
_TOTAL = """
    SELECT count(*) AS jobs, coalesce(sum(gpu_count), 0)::bigint AS gpus
      FROM jobs_job WHERE state IN ('pending', 'held')
"""
_JOBS = f"""
    SELECT {_COLUMNS}, a.placement
      FROM (SELECT id FROM (SELECT id FROM jobs_job ORDER BY id DESC LIMIT %(most)s) latest
             UNION
            SELECT own.id FROM unnest(%(tenants)s::bigint[]) AS w (tenant_id),
                   LATERAL (SELECT id FROM jobs_job WHERE tenant_id = w.tenant_id
                             ORDER BY id DESC LIMIT %(most)s) own) wanted
      JOIN jobs_job j ON j.id = wanted.id {_JOINS}
      LEFT JOIN jobs_attempt a ON a.job_id = j.id AND a.number = j.attempt
     ORDER BY j.id DESC
"""


@dataclass(frozen=True)
class Worklist:
    """Jobs in order as (tenant, row, reason if it names a job), enough for each viewer's first ones; `tenant_of` the
    jobs that reasons name."""

    jobs: list[tuple[int, Row, Row | None]]
    tenant_of: dict[int, int]
    total: Row | None = None


def load_queue(tenants: Iterable[int]) -> Worklist:
    """Waiting jobs: the first of all, and the first of each of `tenants`."""
    rows = query(_QUEUE, {"most": QUEUE_ROWS, "tenants": sorted(tenants)})
    [total] = query(_TOTAL)
    names = ("id", "name", "tenant", "user", "state", "gpu_count", "gpu_memory_mb", "priority", "position")
    shown = [
        {
            **{name: row[name] for name in names},
            "gpu_model": "|".join(row["gpu_models"]) or None,
            "submitted_at": rfc3339(row["submitted_at"]),
        }
        for row in rows
    ]
    return _worklist(rows, shown, total)


def load_jobs(tenants: Iterable[int]) -> Worklist:
    """The latest jobs of all, and the latest of each of `tenants`."""
    rows = query(_JOBS, {"most": JOBS_ROWS, "tenants": sorted(tenants)})
    names = ("id", "name", "tenant", "user", "state", "gpu_count", "exit_code", "attempt")
    shown = [
        {
            **{name: row[name] for name in names},
            "nodes": sorted({rank["node"] for rank in row["placement"] or []}),
            "submitted_at": rfc3339(row["submitted_at"]),
            "started_at": rfc3339(row["started_at"]),
            "ended_at": rfc3339(row["ended_at"]),
        }
        for row in rows
    ]
    return _worklist(rows, shown)


def _worklist(rows: list[Row], shown: list[Row], total: Row | None = None) -> Worklist:
    told = [representation.reason(row) for row in rows]
    jobs = [
        (row["tenant_id"], {**seen, "reason": _short(reason)}, reason if reason and _names_a_job(reason) else None)
        for row, seen, reason in zip(rows, shown, told, strict=True)
    ]
    return Worklist(jobs, tenants_named(told), total)


def restrict_queue(listed: Worklist, visible: Sequence[int] | None) -> dict[str, Row]:
    """The viewer's first jobs by id; the total counts everybody's, as GET /api/v1/queue does."""
    rows = _restricted(listed, visible, QUEUE_ROWS)
    return {**rows, "total": {**(listed.total or {}), "shown": len(rows)}}


def restrict_jobs(listed: Worklist, visible: Sequence[int] | None) -> dict[str, Row]:
    return _restricted(listed, visible, JOBS_ROWS)


def _restricted(listed: Worklist, visible: Sequence[int] | None, most: int) -> dict[str, Row]:
    seen = (job for job in listed.jobs if visible is None or job[0] in visible)
    rows = {}
    for _, row, naming in islice(seen, most):
        told = row if naming is None else {**row, "reason": _short(told_reason(naming, visible, listed.tenant_of))}
        rows[str(row["id"])] = told
    return rows


def _short(reason: Row | None) -> Row | None:
    return reason and {name: reason[name] for name in ("code", "sentence", "next_step", "since")}


def _names_a_job(reason: Row) -> bool:
    return reason["evidence"].get("for_job") is not None


def tenants_named(told: Iterable[Row | None]) -> dict[int, int]:
    """The tenants of the jobs that reasons name: a job may wait behind another tenant's."""
    ids = {reason["evidence"]["for_job"] for reason in told if reason and _names_a_job(reason)}
    if not ids:
        return {}
    rows = query("SELECT id, tenant_id FROM jobs_job WHERE id = ANY(%s)", [sorted(ids)])
    return {row["id"]: row["tenant_id"] for row in rows}


def told_reason(reason: Row | None, visible: Sequence[int] | None, tenant_of: dict[int, int]) -> Row | None:
    """A reason without the id of a job that the viewer may not see (A08)."""
    if reason is None or visible is None:
        return reason
    named = reason["evidence"].get("for_job")
    if named is None or tenant_of.get(named) in visible:
        return reason
    evidence = {**reason["evidence"], "for_job": ANOTHERS}
    return {**reason, "evidence": evidence, "sentence": reasons.sentence(reason["code"], evidence)}
