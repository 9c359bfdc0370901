"""The rows of topic `jobs`: the latest jobs of all states."""

from collections.abc import Iterable, Sequence
from itertools import islice

from frontend.live.topics import Topic
from gpusched.lib.db.sql import Row, query
from gpusched.lib.times import rfc3339
from jobs.listing import representation

JOBS_ROWS = 200

_COLUMNS = """
    j.id, j.name, j.tenant_id, t.name AS tenant, u.username AS "user", j.state, j.gpu_count, j.gpu_models,
    j.gpu_memory_mb, j.priority, j.attempt, j.submitted_at, j.started_at, j.ended_at, j.exit_code, j.signal, j.reason,
    j.evidence, j.reason_since, j.stop_reason, j.stop_evidence, j.max_runtime_seconds, j.array_count,
    j.array_max_parallel, j.elements_waiting,
    j.elements_cancelled
"""
_JOINS = "JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id"
_JOBS = f"""
    SELECT {_COLUMNS}, a.placement
      FROM (SELECT id FROM (SELECT id FROM jobs_all WHERE array_id IS NULL ORDER BY id DESC LIMIT %(most)s) latest
             UNION
            SELECT own.id FROM unnest(%(tenants)s::bigint[]) AS w (tenant_id),
                   LATERAL (SELECT id FROM jobs_all WHERE tenant_id = w.tenant_id AND array_id IS NULL
                             ORDER BY id DESC LIMIT %(most)s) own) wanted
      JOIN jobs_all j ON j.id = wanted.id {_JOINS}
      LEFT JOIN jobs_attempts a ON a.job_id = j.id AND a.number = j.attempt
     ORDER BY j.id DESC
"""


# Jobs in order as (tenant, row), enough for the latest jobs of each viewer.
Worklist = list[tuple[int, Row]]


def load(tenants: Iterable[int]) -> Worklist:
    """Load the latest jobs of all tenants, and the latest of each of `tenants`."""
    rows = query(_JOBS, {"most": JOBS_ROWS, "tenants": sorted(tenants)})
    elements = representation.elements_by_state([row["id"] for row in rows if row["array_count"] is not None])
    names = ("id", "name", "tenant", "user", "state", "gpu_count", "exit_code", "attempt")
    represented = [
        {
            **{name: row[name] for name in names},
            "array": representation.array(row, elements.get(row["id"], {})),
            "nodes": sorted({rank["node"] for rank in row["placement"] or []}),
            "submitted_at": rfc3339(row["submitted_at"]),
            "started_at": rfc3339(row["started_at"]),
            "ended_at": rfc3339(row["ended_at"]),
        }
        for row in rows
    ]
    return [
        (row["tenant_id"], {**fields, "reason": _short(representation.reason(row))})
        for row, fields in zip(rows, represented, strict=True)
    ]


def restrict(listed: Worklist, visible: Sequence[int] | None) -> dict[str, Row]:
    """Return the viewer's latest jobs by id."""
    visible_rows = (row for tenant_id, row in listed if visible is None or tenant_id in visible)
    return {str(row["id"]): row for row in islice(visible_rows, JOBS_ROWS)}


def _short(reason: Row | None) -> Row | None:
    return reason and {name: reason[name] for name in ("code", "sentence", "next_step", "since")}


TOPICS = (
    Topic(
        "jobs",
        lambda requested, _: load({tenant_id for _key, viewer in requested for tenant_id in viewer.visible or ()}),
        lambda jobs, _, viewer: restrict(jobs, viewer.visible),
        invalidated_by=frozenset({"jobs", "tenants"}),
    ),
)
