"""The rows of topics `queue` and `jobs`: the first jobs that wait, and the latest jobs of all states."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gpusched.lib.sql import query
from gpusched.lib.times import rfc3339
from jobs import representation

Row = dict[str, Any]
QUEUE_ROWS = 500
JOBS_ROWS = 200

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
    """Jobs in order as (tenant, row), enough for each viewer's first ones."""

    jobs: list[tuple[int, Row]]
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
    jobs = [
        (row["tenant_id"], {**seen, "reason": _short(representation.reason(row))})
        for row, seen in zip(rows, shown, strict=True)
    ]
    return Worklist(jobs, total)


def restrict_queue(listed: Worklist, visible: Sequence[int] | None) -> dict[str, Row]:
    """The viewer's first jobs by id; the total counts everybody's, as GET /api/v1/queue does."""
    rows = _restricted(listed, visible, QUEUE_ROWS)
    return {**rows, "total": {**(listed.total or {}), "shown": len(rows)}}


def restrict_jobs(listed: Worklist, visible: Sequence[int] | None) -> dict[str, Row]:
    return _restricted(listed, visible, JOBS_ROWS)


def _restricted(listed: Worklist, visible: Sequence[int] | None, most: int) -> dict[str, Row]:
    seen = (row for tenant_id, row in listed.jobs if visible is None or tenant_id in visible)
    return {str(row["id"]): row for row in islice(seen, most)}


def _short(reason: Row | None) -> Row | None:
    return reason and {name: reason[name] for name in ("code", "sentence", "next_step", "since")}
