"""Status of the queue and the cluster: positions, estimates, nodes, cycles and shares."""

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

# The displayed order of the queue: by priority, then by age. What starts next also depends on shares and fit; each
# job's reason explains that.
_GPUS = "j.weight * j.gpu_count::bigint"


def queue(identity: Identity, after: Sequence[Any] | None, limit: int) -> dict[str, Any]:
    """Return the caller's pending jobs with their positions in the queue of all tenants, and totals. Each has an
    estimate, unless there are too many jobs to compute it."""
    visible = identity.visible_tenants()
    condition, params = "true", list[Any]()
    if visible is not None:
        condition, params = "j.tenant_id = ANY(%s)", [visible]
    if after is not None:
        condition += " AND (-j.priority, extract(epoch FROM j.submitted_at)::float8, j.id) > (%s, %s, %s)"
        params += after
    rows = query(
        f"""SELECT j.*, j.elements_waiting AS elements, NULL AS placement, t.name AS tenant,
                   u.username AS "user", extract(epoch FROM j.submitted_at)::float8 AS at
              FROM jobs_all j JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id
             WHERE j.is_waiting AND {condition} ORDER BY {ORDER} LIMIT %s""",
        [*params, limit],
    )
    positions = queue_positions([row["id"] for row in rows])
    [total] = query(
        f"SELECT coalesce(sum(j.weight), 0)::bigint AS jobs, coalesce(sum({_GPUS}), 0)::bigint AS gpus"
        f"  FROM jobs_all j WHERE j.is_waiting"
    )
    last = rows[-1] if len(rows) == limit else None
    estimates = estimates_of([row["id"] for row in rows])
    return {
        # A job that started between the queries is no longer pending.
        "items": [
            _represent_queued(row, positions[row["id"]], estimates[row["id"]])
            for row in rows
            if row["id"] in positions and row["id"] in estimates
        ],
        "total": total["jobs"],
        "total_gpus": total["gpus"],
        "next": None if last is None else (-last["priority"], last["at"], last["id"]),
    }


def estimates_of(job_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return for those of the jobs that are pending: `estimate` of the start, as in an explanation, or in
    `estimate_reason` why there is none."""
    estimates = current.queue_estimates() if job_ids else {}
    waiting = query(
        "SELECT j.id, j.state, j.reason FROM jobs_all j WHERE j.id = ANY(%s) AND j.is_waiting", [list(job_ids)]
    )
    return {row["id"]: _estimate_fields(row, estimates.get(row["id"])) for row in waiting}


def _estimate_fields(row: dict[str, Any], estimate: Estimate | None) -> dict[str, Any]:
    reason = why_no_estimate(row["state"], row["reason"])
    if reason is None and estimate is not None:
        return {"estimate": present_estimate(estimate), "estimate_reason": None}
    return {"estimate": None, "estimate_reason": reason or current.why_no_queue_estimate()}


def _represent_queued(row: dict[str, Any], position: tuple[int, int], foreseen: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "tenant", "user", "state", "gpu_count", "priority")
    return {
        "job_id": row["id"],
        **{name: row[name] for name in names},
        "position": position[0],
        "gpus_ahead": position[1],
        "elements": row["elements"],
        "submitted_at": rfc3339(row["submitted_at"]),
        "reason": representation.reason(row),
        **foreseen,
    }


# --- the cluster ------------------------------------------------------------------------------------------------------


# A failed worker is replaced within two seconds, and no cycle takes this long.
SILENT_SECONDS = 15.0


_BY_STATE = "SELECT state, count(*) AS n FROM nodes_all WHERE removed_at IS NULL GROUP BY state"


def agents() -> dict[str, int]:
    """Return the number of nodes by the state of their agent, and `total`."""
    counts = {row["state"]: row["n"] for row in query(_BY_STATE)}
    return {**{str(state): counts.get(state, 0) for state in NodeState}, "total": sum(counts.values())}


def cluster_status() -> dict[str, Any]:
    """Return the cluster's numbers for scripts and status lines."""
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
    """Return when the last cycle ended. Cycles run at least every GPUSCHED_TICK_SECONDS."""
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


def term() -> int:
    """Return the number of the present leader's term; 0 before the first."""
    rows = prepared("SELECT term FROM scheduling_term")
    return int(rows[0]["term"]) if rows else 0


def cycles(limit: int, older_than: int | None = None) -> list[dict[str, Any]]:
    """Return cycles, newest first. `older_than`: only those before the cycle with this id."""
    rows = query(
        """SELECT *, EXISTS (SELECT 1 FROM scheduling_recordedcycle r WHERE r.cycle_id = c.id) AS is_recorded
             FROM scheduling_cycle c WHERE %s::bigint IS NULL OR id < %s ORDER BY id DESC LIMIT %s""",
        [older_than, older_than, limit],
    )
    return [
        {**row, "started_at": rfc3339(row["started_at"]), "reserved_at": rfc3339(row["reserved_at"])} for row in rows
    ]


def shares(*, with_archived: bool = False) -> list[dict[str, Any]]:
    """Return what each tenant holds and has used by weight: the values that order the queue under `fair`."""
    archived = {row["id"] for row in prepared("SELECT id FROM tenants_all WHERE archived_at IS NOT NULL")}
    held_by = {
        row["tenant_id"]: row
        for row in prepared(
            """SELECT j.tenant_id, count(DISTINCT j.id) AS jobs, coalesce(sum(h.gpu_weight), 0) AS gpus
                 FROM jobs_all j JOIN nodes_ranks s ON s.job_id = j.id AND s.state <> 'ended'
                 LEFT JOIN nodes_held h ON h.assignment_id = s.id GROUP BY j.tenant_id"""
        )
    }
    live_policy = policy()
    loaded = load_tenants(live_policy)
    weights = entitlements(loaded, live_policy)
    return [
        {
            "tenant": tenant.name,
            "tenant_id": tenant.id,
            "weight": tenant.weight,
            "effective_weight": round(weights[tenant.id].effective, 6),
            "weight_reason": why_entitled(weights[tenant.id], live_policy),
            "gpus_held": round(held_by.get(tenant.id, {}).get("gpus", 0.0), 3),
            "jobs_live": held_by.get(tenant.id, {}).get("jobs", 0),
            "guaranteed_gpus": tenant.guaranteed_gpus,
            "max_gpus": tenant.max_gpus,
            "usage_gpu_hours": round(tenant.usage_gpu_seconds / 3600, 4),
            "share": round(
                (average_gpus(tenant.usage_gpu_seconds, live_policy) + held_by.get(tenant.id, {}).get("gpus", 0.0))
                / weights[tenant.id].effective,
                6,
            ),
        }
        for tenant in loaded
        if with_archived or tenant.id not in archived
    ]
