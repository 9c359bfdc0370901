"""The rows of topic `mine`: a person's jobs that run, wait and ended lately, and what their tenants hold."""

from collections.abc import Collection, Mapping
from typing import Any

from frontend.live.topics import Audience, Topic
from frontend.pages.my_work import mine
from frontend.viewer import Viewer
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from jobs.listing import representation

Row = dict[str, Any]

_JOBS = f"""
    SELECT w.user_id, p.part, j.id, j.name, t.name AS tenant, j.state, j.priority, j.gpu_count, j.attempt,
           j.submitted_at, j.started_at, j.ended_at, j.exit_code, j.signal, j.reason, j.evidence, j.reason_since,
           j.stop_reason, j.stop_evidence, j.max_runtime_seconds, a.placement
      FROM unnest(%(users)s::int[]) AS w (user_id)
     CROSS JOIN {mine.PARTS}
      JOIN jobs_job j ON j.id = p.id JOIN tenants_tenant t ON t.id = j.tenant_id
      LEFT JOIN jobs_attempt a ON a.job_id = j.id AND a.number = j.attempt
"""
_TENANTS = """
    SELECT m.user_id, m.role, t.name, coalesce(q.guaranteed_gpus, 0) AS guaranteed_gpus, q.max_gpus,
           q.max_gpus_per_user, count(DISTINCT l.device_id) AS gpus_held,
           count(DISTINCT l.device_id) FILTER (WHERE j.user_id = m.user_id) AS own_gpus
      FROM tenants_membership m JOIN tenants_tenant t ON t.id = m.tenant_id
      LEFT JOIN tenants_quota q ON q.tenant_id = t.id
      LEFT JOIN jobs_job j ON j.tenant_id = t.id AND j.state IN ('scheduled', 'running', 'stopping')
      LEFT JOIN nodes_assignment s ON s.job_id = j.id AND s.state <> 'ended'
      LEFT JOIN nodes_allocation l ON l.assignment_id = s.id
     WHERE m.user_id = ANY(%s) AND t.archived_at IS NULL
     GROUP BY m.user_id, m.role, t.name, q.guaranteed_gpus, q.max_gpus, q.max_gpus_per_user
"""


def load(user_ids: Collection[int]) -> dict[int, dict[str, Row]]:
    """Rows by person: `counts`, `job:<id>` and `tenant:<name>`."""
    users = sorted(user_ids)
    found: dict[int, dict[str, Row]] = {user: {"counts": row} for user, row in mine.counts(users).items()}
    for row in query(_JOBS, {"users": users}):
        found[row["user_id"]][f"job:{row['id']}"] = _job(row)
    for row in query(_TENANTS, [users]):
        found[row.pop("user_id")][f"tenant:{row['name']}"] = row
    return found


def restrict(loaded: Mapping[int, dict[str, Row]], viewer: Viewer) -> dict[str, Row]:
    """What is somebody's own is theirs to see; in a tenant that they have left nothing is."""
    return {} if viewer.user_id is None else loaded[viewer.user_id]


def _job(row: Row) -> Row:
    names = ("id", "name", "tenant", "state", "part", "priority", "gpu_count", "attempt", "exit_code")
    reason = representation.reason(row)
    return {
        **{name: row[name] for name in names},
        "nodes": sorted({rank["node"] for rank in row["placement"] or []}),
        "max_runtime_minutes": None if row["max_runtime_seconds"] is None else row["max_runtime_seconds"] / 60,
        "reason": reason and {name: reason[name] for name in ("code", "sentence", "next_step", "since")},
        **{name: rfc3339(row[name]) for name in ("submitted_at", "started_at", "ended_at")},
    }


TOPICS = (
    Topic(
        "mine",
        lambda asked, _: load({viewer.user_id for _key, viewer in asked if viewer.user_id is not None}),
        lambda people, _, viewer: restrict(people, viewer),
        audience=Audience.PERSON,
        invalidated_by=frozenset({"jobs", "tenants"}),
        pause_seconds=0.5,
    ),
)
