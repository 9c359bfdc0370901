"""Moves jobs off GPUs that stay hot, or says which it would move: only who can start elsewhere now, and never for ever.

A moved job is preempted by the rule `heat`: notice, grace, back to the queue with its queue time. The GPU that it was
moved off gets no work until it has cooled (see `_DEVICES` in snapshot.py)."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import query, retry_atomic
from gpusched.lib.histograms import observe
from gpusched.protocol.reasons import EndReason
from jobs.lifecycle import states
from nodes.health import incidents
from scheduling import policy
from scheduling.engine.model import Node, Tenant
from scheduling.engine.planner import plan
from scheduling.engine.whatif.questions import Present
from scheduling.whatif import current

logger = logging.getLogger(__name__)
RULE, MOVED, WOULD_MOVE = "heat", "moved", "would_move"
# Each move of a job doubles how long it must have run before the next, and these are all.
MAX_MOVES = 3
MAX_AT_ONCE = 5

_HOT = """
    SELECT * FROM (
        SELECT DISTINCT ON (s.job_id) s.job_id, j.tenant_id, d.id AS device_id, d.node_id, n.name AS node,
               d.index AS gpu, r.temperature_celsius AS celsius, i.since,
               extract(epoch FROM clock_timestamp() - a.started_at)::float8 AS ran_seconds,
               floor(extract(epoch FROM clock_timestamp() - i.since) / 60)::int AS minutes,
               (SELECT count(*) FROM jobs_attempts e WHERE e.job_id = j.id AND e.reason = 'preempted'
                   AND e.evidence->>'rule' = 'heat') AS moves
          FROM nodes_incidents i JOIN nodes_devices d ON d.id = i.device_id AND d.health = 'hot'
          JOIN nodes_all n ON n.id = d.node_id JOIN nodes_allocations l ON l.device_id = d.id
          JOIN nodes_ranks s ON s.id = l.assignment_id
          JOIN jobs_all j ON j.id = s.job_id AND j.attempt = s.number AND j.state = 'running'
          JOIN jobs_attempts a ON a.id = s.attempt_id
          LEFT JOIN nodes_readings r ON r.device_id = d.id
         WHERE i.until IS NULL AND i.kind = 'hot' AND j.preemptible AND j.requeue
           AND i.since < clock_timestamp() - make_interval(secs => %s)
         ORDER BY s.job_id, i.since, d.id) hot
     ORDER BY since, job_id
"""


def move_off_hot_gpus() -> int:
    """Looks once; gives how many jobs were told to move, or would have been (GPUSCHED_THERMAL_MOVES)."""
    values = policy.values()
    is_off = values["thermal_moves"] == "off" or not values["enable_thermal_aware"] or not values["enable_preemption"]
    if is_off:
        return 0
    found = query(_HOT, [values["thermal_move_minutes"] * 60])
    ready = [row for row in found if _has_run(row, values)]
    movable = _with_a_place_elsewhere(ready) if ready else []
    is_real = values["thermal_moves"] == "move"
    return sum(retry_atomic(lambda: _move(row) if is_real else _say(row)) for row in movable)  # noqa: B023


def _has_run(row: dict[str, Any], values: dict[str, Any]) -> bool:
    """Whether the job has run long enough since it was last moved or started, and may be moved once more."""
    least = max(values["min_runtime_seconds"], values["thermal_move_minutes"] * 60)
    return bool(row["moves"] < MAX_MOVES and row["ran_seconds"] >= least * 2 ** row["moves"])


def _with_a_place_elsewhere(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the jobs that would start now, in their turn, on other devices; each is asked with those before it."""
    here = current.take_snapshot(held=[row["job_id"] for row in rows])
    asked = {row["job_id"] for row in rows}
    tenants = {tenant.id: tenant for tenant in here.snapshot.tenants}
    hot = {row["device_id"] for row in query("SELECT id AS device_id FROM nodes_devices WHERE health = 'hot'")}
    moving: list[dict[str, Any]] = []
    for row in rows:
        if len(moving) == MAX_AT_ONCE or not _may_lose_one(tenants[row["tenant_id"]], moving):
            continue
        ids = {one["job_id"] for one in moving} | {row["job_id"]}
        if ids <= _started(here, asked - ids, ids, hot):
            moving.append(row)
    return moving


def _may_lose_one(tenant: Tenant, moving: Sequence[dict[str, Any]]) -> bool:
    used = sum(one["tenant_id"] == tenant.id for one in moving)
    return tenant.allow_preemption and (tenant.preemptions_left is None or tenant.preemptions_left > used)


def _started(here: Present, others: set[int], moved: set[int], hot: set[int]) -> set[int]:
    """The jobs that start if `moved` wait and have not yet given anything back. `others` run on."""
    snapshot = replace(
        here.snapshot,
        jobs=tuple(job for job in here.snapshot.jobs if job.id not in others),
        running=tuple(job for job in here.snapshot.running if job.job_id not in moved),
        nodes=tuple(_without(node, hot) for node in here.snapshot.nodes),
    )
    decided = plan(snapshot, replace(here.policy, preemption=False), here.now)
    return {placement.job_id for placement in decided.placements}


def _without(node: Node, hot: set[int]) -> Node:
    if not any(device.id in hot for device in node.devices):
        return node
    devices = tuple(replace(one, is_healthy=one.is_healthy and one.id not in hot) for one in node.devices)
    return replace(node, devices=devices)


def _move(row: dict[str, Any]) -> int:
    states.lock_jobs([row["job_id"]])
    why = f"has been hot for {row['minutes']} min{_celsius(row)}"
    evidence = {"by": f"GPU {row['gpu']} of {row['node']}", "why": why, "rule": RULE}
    stopped = states.stop([row["job_id"]], EndReason.PREEMPTED, evidence, "scheduler")
    if stopped:
        _keep(row, MOVED, f"moved {_what(row)}")
        observe("gpu_scheduler_preemptions_total", {RULE: [1.0]})
        events.changed("jobs", stopped)
        events.changed("nodes", [row["node_id"]])
        wake.request_cycle()
        logger.warning(
            "job %d is moved off %s, which %s", row["job_id"], evidence["by"], why, extra={"job_id": row["job_id"]}
        )
    return len(stopped)


def _say(row: dict[str, Any]) -> int:
    return _keep(row, WOULD_MOVE, f"would have moved {_what(row)}")


def _keep(row: dict[str, Any], kind: str, cause: str) -> int:
    job = f"moved job {row['job_id']} off"
    return incidents.record_once(row["node_id"], row["device_id"], kind, cause, part=job, since=row["since"])


def _what(row: dict[str, Any]) -> str:
    return (
        f"job {row['job_id']} off GPU {row['gpu']} of {row['node']} after {row['minutes']} min of heat{_celsius(row)}"
    )


def _celsius(row: dict[str, Any]) -> str:
    return "" if row["celsius"] is None else f" ({row['celsius']} °C)"
