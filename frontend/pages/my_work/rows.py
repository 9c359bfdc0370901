"""The rows of topic `mine`: a user's running, waiting and recent jobs, and the use of their tenants."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from frontend.live.topics import Audience, Topic
from frontend.viewer import Viewer
from gpusched.lib.db.sql import Row, query
from gpusched.lib.times import rfc3339
from jobs.listing import representation
from jobs.listing.queue_position import ORDER
from tenants.api.tenants import represent_tenants
from tenants.auth.identity import Identity
from tenants.billing import budgets

MAX_JOBS = 50


RECENT = 15


_ALLOCATED = """
    SELECT j.tenant_id, count(DISTINCT l.device_id) AS gpus, count(DISTINCT j.id) AS jobs
      FROM jobs_all j JOIN nodes_ranks s ON s.job_id = j.id AND s.state <> 'ended'
      LEFT JOIN nodes_allocations l ON l.assignment_id = s.id
     WHERE j.user_id = %s GROUP BY j.tenant_id
"""


# For jobs j of a user: jobs in tenants that they have left are hidden. Both sets are hashed once.
IS_VISIBLE = """(j.user_id IN (SELECT id FROM tenants_people WHERE is_superuser)
    OR (j.user_id, j.tenant_id) IN (SELECT user_id, tenant_id FROM tenants_members))"""


_RUNS = "j.array_count IS NULL AND j.state IN ('scheduled', 'running', 'stopping')"


_COUNTS = f"""
    SELECT j.user_id, coalesce(sum(j.weight) FILTER (WHERE j.is_waiting), 0)::int AS waiting,
           count(*) FILTER (WHERE {_RUNS}) AS running
      FROM jobs_all j WHERE j.user_id = ANY(%s) AND j.ended_at IS NULL AND {IS_VISIBLE} GROUP BY j.user_id
"""


# The visible jobs of each user w (user_id) by part. An array appears once while elements wait, and once when it is
# over; running elements are jobs of their own.
PARTS = f"""
    LATERAL (
        (SELECT j.id, 'running' AS part FROM jobs_all j WHERE j.user_id = w.user_id AND {_RUNS} AND {IS_VISIBLE}
          ORDER BY j.id LIMIT {MAX_JOBS})
         UNION ALL
        (SELECT j.id, 'waiting' FROM jobs_all j WHERE j.user_id = w.user_id AND j.is_waiting AND {IS_VISIBLE}
          ORDER BY {ORDER} LIMIT {MAX_JOBS})
         UNION ALL
        (SELECT j.id, 'recent' FROM jobs_all j WHERE j.user_id = w.user_id AND j.array_id IS NULL
            AND j.ended_at IS NOT NULL AND {IS_VISIBLE} ORDER BY j.id DESC LIMIT {RECENT})) p
"""


def jobs(user_id: int) -> dict[str, list[Row]]:
    """Return the `running`, `waiting` (in queue order) and `recent` jobs of a user."""
    parts = query(f"SELECT p.* FROM (SELECT %s::int AS user_id) w, {PARTS}", [user_id])
    represented = {job["id"]: job for job in representation.select("j.id = ANY(%s)", [[row["id"] for row in parts]])}
    parts_by_name: dict[str, list[Row]] = {"running": [], "waiting": [], "recent": []}
    for row in parts:
        if row["id"] in represented:
            parts_by_name[row["part"]].append(represented[row["id"]])
    return parts_by_name


def counts(user_ids: Collection[int]) -> dict[int, dict[str, int]]:
    """Return the counts of `running` and `waiting` jobs by user, counting array elements. The lists can be shorter."""
    by_user = {user: {"running": 0, "waiting": 0} for user in user_ids}
    for row in query(_COUNTS, [sorted(user_ids)]):
        by_user[row.pop("user_id")] = row
    return by_user


def quotas(identity: Identity) -> list[Row]:
    """Return the user's tenants with their use, the user's own use, and what remains of each limit."""
    user_allocations = {row["tenant_id"]: row for row in query(_ALLOCATED, [identity.user_id])}
    budget_by_tenant = (
        {budget.tenant_id: budget for budget in budgets.statuses(sorted(identity.roles))} if identity.roles else {}
    )
    represented = represent_tenants(sorted(identity.roles), with_archived=False)
    nothing = {"gpus": 0, "jobs": 0}
    return [
        {
            **tenant,
            "role": identity.roles[tenant["id"]],
            "user_use": user_allocations.get(tenant["id"], nothing),
            "remaining": remaining(
                tenant["quota"], tenant["in_use"], user_allocations.get(tenant["id"], nothing)["gpus"]
            ),
            "budget": budget_by_tenant.get(tenant["id"]),
        }
        for tenant in represented
    ]


def remaining(quota: Mapping[str, Any], in_use: Mapping[str, Any], own_gpus: int) -> list[Row]:
    """Return the limited resources: `resource`, `remaining` and `limit`."""
    bounds: Sequence[tuple[str, Any, Any]] = (
        ("GPUs of the tenant", quota["max_gpus"], in_use["gpus"]),
        ("GPUs of your own", quota["max_gpus_per_user"], own_gpus),
        ("CPU cores", quota["max_cpu_cores"], in_use["cpu_cores"]),
        ("jobs at once", quota["max_concurrent_jobs"], in_use["jobs"]),
    )
    return [
        {"resource": resource, "remaining": max(0, limit - used), "limit": limit}
        for resource, limit, used in bounds
        if limit is not None
    ]


_JOBS = f"""
    SELECT w.user_id, p.part, j.id, j.name, t.name AS tenant, j.state, j.priority, j.gpu_count, j.attempt,
           j.submitted_at, j.started_at, j.ended_at, j.exit_code, j.signal, j.reason, j.evidence, j.reason_since,
           j.stop_reason, j.stop_evidence, j.max_runtime_seconds, a.placement
      FROM unnest(%(users)s::int[]) AS w (user_id)
     CROSS JOIN {PARTS}
      JOIN jobs_all j ON j.id = p.id JOIN tenants_all t ON t.id = j.tenant_id
      LEFT JOIN jobs_attempts a ON a.job_id = j.id AND a.number = j.attempt
"""
_TENANTS = """
    SELECT m.user_id, m.role, t.name, coalesce(q.guaranteed_gpus, 0) AS guaranteed_gpus, q.max_gpus,
           q.max_gpus_per_user, count(DISTINCT l.device_id) AS gpus_held,
           count(DISTINCT l.device_id) FILTER (WHERE j.user_id = m.user_id) AS own_gpus
      FROM tenants_members m JOIN tenants_all t ON t.id = m.tenant_id
      LEFT JOIN tenants_quotas q ON q.tenant_id = t.id
      LEFT JOIN jobs_all j ON j.tenant_id = t.id AND j.state IN ('scheduled', 'running', 'stopping')
      LEFT JOIN nodes_ranks s ON s.job_id = j.id AND s.state <> 'ended'
      LEFT JOIN nodes_allocations l ON l.assignment_id = s.id
     WHERE m.user_id = ANY(%s) AND t.archived_at IS NULL
     GROUP BY m.user_id, m.role, t.name, q.guaranteed_gpus, q.max_gpus, q.max_gpus_per_user
"""


def load(user_ids: Collection[int]) -> dict[int, dict[str, Row]]:
    """Return rows by user: `counts`, `job:<id>` and `tenant:<name>`."""
    users = sorted(user_ids)
    by_user: dict[int, dict[str, Row]] = {user: {"counts": row} for user, row in counts(users).items()}
    for row in query(_JOBS, {"users": users}):
        by_user[row["user_id"]][f"job:{row['id']}"] = _job(row)
    for row in query(_TENANTS, [users]):
        by_user[row.pop("user_id")][f"tenant:{row['name']}"] = row
    return by_user


def restrict(loaded: Mapping[int, dict[str, Row]], viewer: Viewer) -> dict[str, Row]:
    """Return the viewer's own rows. They exclude tenants that the viewer has left."""
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
        lambda requested, _: load({viewer.user_id for _key, viewer in requested if viewer.user_id is not None}),
        lambda people, _, viewer: restrict(people, viewer),
        audience=Audience.PERSON,
        invalidated_by=frozenset({"jobs", "tenants"}),
        pause_seconds=0.5,
    ),
)
