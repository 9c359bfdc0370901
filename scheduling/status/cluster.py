"""Answers about scheduling: who waits in which order, and how the cluster is."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings

from gpusched.lib.db.sql import prepared, query
from gpusched.lib.times import rfc3339
from gpusched.protocol.states import NodeState
from jobs.listing import representation
from jobs.listing.counts import by_state
from jobs.listing.queue_position import ORDER, queue_positions
from scheduling.cycle.tenants import load_tenants
from scheduling.engine.queue.fairshare import average_gpus, entitlements, why_entitled
from scheduling.engine.whatif.estimate import Estimate
from scheduling.policy import policy
from scheduling.whatif import current
from scheduling.whatif.presenters import present_estimate, why_no_estimate
from tenants.auth.identity import Identity

# --- the queue --------------------------------------------------------------------------------------------------------

# The queue as people read it: by priority, then by age. What starts next also depends on shares and fit, and that is
# what each job's reason is for.
_GPUS = "j.weight * j.gpu_count::bigint"


def queue(identity: Identity, after: Sequence[Any] | None, limit: int) -> dict[str, Any]:
    """The caller's waiting jobs with their position among everybody's; of other tenants only the totals are told. Each
    has an estimate, unless so many wait that it takes long."""
    visible = identity.visible_tenants()
    where, params = "true", list[Any]()
    if visible is not None:
        where, params = "j.tenant_id = ANY(%s)", [visible]
    if after is not None:
        where += " AND (-j.priority, extract(epoch FROM j.submitted_at)::float8, j.id) > (%s, %s, %s)"
        params += after
    rows = query(
        f"""SELECT j.*, j.elements_waiting AS elements, NULL AS placement, t.name AS tenant,
                   u.username AS "user", extract(epoch FROM j.submitted_at)::float8 AS at
              FROM jobs_all j JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id
             WHERE j.is_waiting AND {where} ORDER BY {ORDER} LIMIT %s""",
        [*params, limit],
    )
    places = queue_positions([row["id"] for row in rows])
    [total] = query(
        f"SELECT coalesce(sum(j.weight), 0)::bigint AS jobs, coalesce(sum({_GPUS}), 0)::bigint AS gpus"
        f"  FROM jobs_all j WHERE j.is_waiting"
    )
    last = rows[-1] if len(rows) == limit else None
    foreseen = estimates_of([row["id"] for row in rows])
    return {
        # One that has started between the two questions waits no more.
        "items": [
            _queued(row, places[row["id"]], foreseen[row["id"]])
            for row in rows
            if row["id"] in places and row["id"] in foreseen
        ],
        "total": total["jobs"],
        "total_gpus": total["gpus"],
        "next": None if last is None else (-last["priority"], last["at"], last["id"]),
    }


def estimates_of(job_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Of those of these that wait: `estimate`, when it will probably start, as an explanation says it, or in
    `estimate_reason` why there is none."""
    found = current.queue_estimates() if job_ids else {}
    waiting = query(
        "SELECT j.id, j.state, j.reason FROM jobs_all j WHERE j.id = ANY(%s) AND j.is_waiting", [list(job_ids)]
    )
    return {row["id"]: _foreseen(row, found.get(row["id"])) for row in waiting}


def _foreseen(row: dict[str, Any], estimate: Estimate | None) -> dict[str, Any]:
    why = why_no_estimate(row["state"], row["reason"])
    if why is None and estimate is not None:
        return {"estimate": present_estimate(estimate), "estimate_reason": None}
    return {"estimate": None, "estimate_reason": why or current.why_unforeseen()}


def _queued(row: dict[str, Any], place: tuple[int, int], foreseen: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "tenant", "user", "state", "gpu_count", "priority")
    return {
        "job_id": row["id"],
        **{name: row[name] for name in names},
        "position": place[0],
        "gpus_ahead": place[1],
        "elements": row["elements"],
        "submitted_at": rfc3339(row["submitted_at"]),
        "reason": representation.reason(row),
        **foreseen,
    }


# --- the cluster ------------------------------------------------------------------------------------------------------


# A worker that fell is replaced within two seconds, and no cycle takes so long.
SILENT_SECONDS = 15.0


_BY_STATE = "SELECT state, count(*) AS n FROM nodes_all WHERE removed_at IS NULL GROUP BY state"


def agents() -> dict[str, int]:
    """Nodes by the state of their agent, and `total`."""
    found = {row["state"]: row["n"] for row in query(_BY_STATE)}
    return {**{str(state): found.get(state, 0) for state in NodeState}, "total": sum(found.values())}


def cluster_status() -> dict[str, Any]:
    """The numbers that a script or a status line asks for."""
    [row] = query(
        """SELECT count(*) AS total_nodes, count(*) FILTER (WHERE state = 'online') AS online_nodes,
                  coalesce(bool_or(pretend), false) AS pretend FROM nodes_all WHERE removed_at IS NULL"""
    )
    [gpus] = query(
        """SELECT count(*) AS total_gpus,
                  count(*) FILTER (WHERE d.held_whole > 0 OR d.held_mb > 0) AS used_gpus,
                  count(*) FILTER (WHERE d.held_whole = 0 AND d.held_mb = 0 AND d.health IN ('ok', 'hot')
                                     AND NOT d.is_slowed AND n.state = 'online' AND n.intent = 'open') AS available_gpus
             FROM nodes_devices d JOIN nodes_all n ON n.id = d.node_id"""
    )
    states = by_state()
    return {
        **row,
        **gpus,
        "total_jobs": sum(states.values()),
        "running_jobs": states.get("running", 0),
        "pending_jobs": states.get("pending", 0) + states.get("held", 0),
        "jobs_by_state": states,
        "scheduler": scheduler_lag(),
    }


def scheduler_lag() -> dict[str, Any]:
    """When the last cycle ended: there is one each GPUSCHED_TICK_SECONDS at least."""
    rows = prepared("SELECT at, extract(epoch FROM clock_timestamp() - at)::float8 AS age, ms FROM scheduling_beat")
    if not rows:
        return {"last_cycle_at": None, "age_seconds": None, "last_cycle_ms": None, "is_alive": False}
    [row] = rows
    return {
        "last_cycle_at": rfc3339(row["at"]),
        "age_seconds": round(row["age"], 1),
        "last_cycle_ms": round(row["ms"], 1),
        "is_alive": row["age"] < max(SILENT_SECONDS, 5 * settings.ENV.tick_seconds),
    }


def cycles(limit: int, before: int | None = None) -> list[dict[str, Any]]:
    """Recorded cycles, newest first; those older than the one with the id `before`."""
    rows = query(
        """SELECT *, EXISTS (SELECT 1 FROM scheduling_recordedcycle r WHERE r.cycle_id = c.id) AS is_recorded
             FROM scheduling_cycle c WHERE %s::bigint IS NULL OR id < %s ORDER BY id DESC LIMIT %s""",
        [before, before, limit],
    )
    return [
        {**row, "started_at": rfc3339(row["started_at"]), "reserved_at": rfc3339(row["reserved_at"])} for row in rows
    ]


def shares(*, with_archived: bool = False) -> list[dict[str, Any]]:
    """What each tenant holds and has used, per weight: the numbers that order the queue under `fair`."""
    archived = {row["id"] for row in prepared("SELECT id FROM tenants_all WHERE archived_at IS NOT NULL")}
    held = {
        row["tenant_id"]: row
        for row in prepared(
            """SELECT j.tenant_id, count(DISTINCT j.id) AS jobs, coalesce(sum(h.gpu_weight), 0) AS gpus
                 FROM jobs_all j JOIN nodes_ranks s ON s.job_id = j.id AND s.state <> 'ended'
                 LEFT JOIN nodes_held h ON h.assignment_id = s.id GROUP BY j.tenant_id"""
        )
    }
    made = policy()
    found = load_tenants(made)
    weights = entitlements(found, made)
    return [
        {
            "tenant": tenant.name,
            "tenant_id": tenant.id,
            "weight": tenant.weight,
            "effective_weight": round(weights[tenant.id].effective, 6),
            "weight_reason": why_entitled(weights[tenant.id], made),
            "gpus_held": round(held.get(tenant.id, {}).get("gpus", 0.0), 3),
            "jobs_live": held.get(tenant.id, {}).get("jobs", 0),
            "guaranteed_gpus": tenant.guaranteed_gpus,
            "max_gpus": tenant.max_gpus,
            "usage_gpu_hours": round(tenant.usage_gpu_seconds / 3600, 4),
            "share": round(
                (average_gpus(tenant.usage_gpu_seconds, made) + held.get(tenant.id, {}).get("gpus", 0.0))
                / weights[tenant.id].effective,
                6,
            ),
        }
        for tenant in found
        if with_archived or tenant.id not in archived
    ]
