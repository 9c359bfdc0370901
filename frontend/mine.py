"""What concerns one person: their jobs that run, wait and have ended, and what their tenants may still hold."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpusched.lib.sql import query
from jobs import representation
from tenants import budgets
from tenants.api import tenants_shown
from tenants.permissions import Identity

Row = dict[str, Any]
MOST = 50
RECENT = 15

_HELD = """
    SELECT j.tenant_id, count(DISTINCT l.device_id) AS gpus, count(DISTINCT j.id) AS jobs
      FROM jobs_job j JOIN nodes_assignment s ON s.job_id = j.id AND s.state <> 'ended'
      LEFT JOIN nodes_allocation l ON l.assignment_id = s.id
     WHERE j.user_id = %s GROUP BY j.tenant_id
"""
_COUNTS = """
    SELECT user_id, count(*) FILTER (WHERE state IN ('pending', 'held')) AS waiting,
           count(*) FILTER (WHERE state NOT IN ('pending', 'held')) AS running
      FROM jobs_job WHERE user_id = ANY(%s) AND ended_at IS NULL GROUP BY user_id
"""


def jobs(user_id: int) -> dict[str, list[Row]]:
    """`running`, `waiting` (in the order of the queue) and `recent` jobs of a person, and how many there are at all."""
    running = representation.select(
        "j.user_id = %s AND j.state IN ('scheduled', 'running', 'stopping')", [user_id], f"ORDER BY j.id LIMIT {MOST}"
    )
    waiting = representation.select(
        "j.user_id = %s AND j.state IN ('pending', 'held')",
        [user_id],
        f"ORDER BY j.priority DESC, j.submitted_at, j.id LIMIT {MOST}",
    )
    recent = representation.select(
        "j.user_id = %s AND j.ended_at IS NOT NULL", [user_id], f"ORDER BY j.id DESC LIMIT {RECENT}"
    )
    return {"running": running, "waiting": waiting, "recent": recent}


def counts(user_ids: Collection[int]) -> dict[int, dict[str, int]]:
    """By person how many of their jobs are `running` and `waiting`: the lists may be shorter."""
    found = {user: {"running": 0, "waiting": 0} for user in user_ids}
    for row in query(_COUNTS, [sorted(user_ids)]):
        found[row.pop("user_id")] = row
    return found


def quotas(who: Identity) -> list[Row]:
    """Of each tenant that the person belongs to: what it holds, what the person holds, and what is left of what."""
    own = {row["tenant_id"]: row for row in query(_HELD, [who.user_id])}
    standing = {one.tenant_id: one for one in budgets.standings(sorted(who.roles))} if who.roles else {}
    shown = tenants_shown(sorted(who.roles))
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
