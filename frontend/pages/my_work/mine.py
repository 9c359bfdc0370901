"""What concerns one person: their jobs that run, wait and have ended, and what their tenants may still hold."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpusched.lib.db.sql import query
from jobs.listing import representation
from jobs.listing.counts import WAITS, WEIGHT
from jobs.listing.queue_position import ORDER
from tenants.api.tenants import represent_tenants
from tenants.auth.identity import Identity
from tenants.billing import budgets

Row = dict[str, Any]
MOST = 50
RECENT = 15

_HELD = """
    SELECT j.tenant_id, count(DISTINCT l.device_id) AS gpus, count(DISTINCT j.id) AS jobs
      FROM jobs_job j JOIN nodes_assignment s ON s.job_id = j.id AND s.state <> 'ended'
      LEFT JOIN nodes_allocation l ON l.assignment_id = s.id
     WHERE j.user_id = %s GROUP BY j.tenant_id
"""
# Of jobs j of a person: a tenant that one has left is another's. Asked of many rows: both sets are hashed once.
IS_SEEN = """(j.user_id IN (SELECT id FROM auth_user WHERE is_superuser)
    OR (j.user_id, j.tenant_id) IN (SELECT user_id, tenant_id FROM tenants_membership))"""
_RUNS = "j.array_count IS NULL AND j.state IN ('scheduled', 'running', 'stopping')"
_COUNTS = f"""
    SELECT j.user_id, coalesce(sum({WEIGHT}) FILTER (WHERE {WAITS}), 0)::int AS waiting,
           count(*) FILTER (WHERE {_RUNS}) AS running
      FROM jobs_job j WHERE j.user_id = ANY(%s) AND j.ended_at IS NULL AND {IS_SEEN} GROUP BY j.user_id
"""
# Which jobs are shown of each person w (user_id), and in which part. An array stands once where its elements wait, and
# once when it is over; those that run are jobs of their own.
PARTS = f"""
    LATERAL (
        (SELECT j.id, 'running' AS part FROM jobs_job j WHERE j.user_id = w.user_id AND {_RUNS} AND {IS_SEEN}
          ORDER BY j.id LIMIT {MOST})
         UNION ALL
        (SELECT j.id, 'waiting' FROM jobs_job j WHERE j.user_id = w.user_id AND {WAITS} AND {IS_SEEN}
          ORDER BY {ORDER} LIMIT {MOST})
         UNION ALL
        (SELECT j.id, 'recent' FROM jobs_job j WHERE j.user_id = w.user_id AND j.array_id IS NULL
            AND j.ended_at IS NOT NULL AND {IS_SEEN} ORDER BY j.id DESC LIMIT {RECENT})) p
"""


def jobs(user_id: int) -> dict[str, list[Row]]:
    """`running`, `waiting` (in the order of the queue) and `recent` jobs of a person."""
    parts = query(f"SELECT p.* FROM (SELECT %s::int AS user_id) w, {PARTS}", [user_id])
    shown = {job["id"]: job for job in representation.select("j.id = ANY(%s)", [[row["id"] for row in parts]])}
    found: dict[str, list[Row]] = {"running": [], "waiting": [], "recent": []}
    for row in parts:
        if row["id"] in shown:
            found[row["part"]].append(shown[row["id"]])
    return found


def counts(user_ids: Collection[int]) -> dict[int, dict[str, int]]:
    """By person how many jobs are `running` and `waiting`, of an array each element. The lists may be shorter."""
    found = {user: {"running": 0, "waiting": 0} for user in user_ids}
    for row in query(_COUNTS, [sorted(user_ids)]):
        found[row.pop("user_id")] = row
    return found


def quotas(who: Identity) -> list[Row]:
    """Of each tenant that the person belongs to: what it holds, what the person holds, and what is left of what."""
    own = {row["tenant_id"]: row for row in query(_HELD, [who.user_id])}
    standing = {one.tenant_id: one for one in budgets.statuses(sorted(who.roles))} if who.roles else {}
    shown = represent_tenants(sorted(who.roles), with_archived=False)
    nothing = {"gpus": 0, "jobs": 0}
    return [
        {
            **tenant,
            "role": who.roles[tenant["id"]],
            "own": own.get(tenant["id"], nothing),
            "left": left(tenant["quota"], tenant["in_use"], own.get(tenant["id"], nothing)["gpus"]),
            "budget": standing.get(tenant["id"]),
        }
        for tenant in shown
    ]


def left(quota: Mapping[str, Any], in_use: Mapping[str, Any], own_gpus: int) -> list[Row]:
    """What may still be held: `what`, how much is `left`, and of which limit. Only what has a limit."""
    bounds: Sequence[tuple[str, Any, Any]] = (
        ("GPUs of the tenant", quota["max_gpus"], in_use["gpus"]),
        ("GPUs of your own", quota["max_gpus_per_user"], own_gpus),
        ("CPU cores", quota["max_cpu_cores"], in_use["cpu_cores"]),
        ("jobs at once", quota["max_concurrent_jobs"], in_use["jobs"]),
    )
    return [
        {"what": what, "left": max(0, limit - used), "limit": limit}
        for what, limit, used in bounds
        if limit is not None
    ]
