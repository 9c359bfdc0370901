"""Move jobs off GPUs that stay hot, or record which would move: only jobs that can start elsewhere now, and each a
limited number of times.

A moved job is preempted by the rule `heat`: notice, grace, back to the queue with its queue time. The GPU gets no work
until it has cooled (see `_DEVICES` in free_nodes.py)."""

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
# Each move of a job doubles the runtime that it needs before the next one, up to this many moves.
MAX_MOVES = 3
MAX_AT_ONCE = 5

_STILL_RUNS = "SELECT 1 FROM jobs_all WHERE id = %s AND attempt = %s AND state = 'running'"
_HOT = """
    SELECT * FROM (
        SELECT DISTINCT ON (s.job_id) s.job_id, s.number AS attempt, j.tenant_id, d.id AS device_id, d.node_id,
               n.name AS node, d.index AS gpu, r.temperature_celsius AS celsius, i.since,
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
    """Move jobs, or record the moves (GPUSCHED_THERMAL_MOVES). Return how many."""
    values = policy.values()
    is_off = values["thermal_moves"] == "off" or not values["enable_thermal_aware"] or not values["enable_preemption"]
    if is_off:
        return 0
    rows = query(_HOT, [values["thermal_move_minutes"] * 60])
    ready = [row for row in rows if _has_run(row, values)]
    movable = _movable(ready) if ready else []
    is_real = values["thermal_moves"] == "move"
    return sum(retry_atomic(lambda: _move(row) if is_real else _record_would_move(row)) for row in movable)  # noqa: B023


def _has_run(row: dict[str, Any], values: dict[str, Any]) -> bool:
    """Return whether the job has run long enough since its last start, and can be moved once more."""
    minimum = max(values["min_runtime_seconds"], values["thermal_move_minutes"] * 60)
    return bool(row["moves"] < MAX_MOVES and row["ran_seconds"] >= minimum * 2 ** row["moves"])


def _movable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that would start now, in their turn, on other devices. Plan each together with those before
    it."""
    view = current.take_snapshot(released=[row["job_id"] for row in rows])
    candidates = {row["job_id"] for row in rows}
    tenants = {tenant.id: tenant for tenant in view.snapshot.tenants}
    hot = {row["device_id"] for row in query("SELECT id AS device_id FROM nodes_devices WHERE health = 'hot'")}
    moving: list[dict[str, Any]] = []
    for row in rows:
        if len(moving) == MAX_AT_ONCE or not _may_lose_one(tenants[row["tenant_id"]], moving):
            continue
        ids = {move["job_id"] for move in moving} | {row["job_id"]}
        if ids <= _started(view, candidates - ids, ids, hot):
            moving.append(row)
    return moving


def _may_lose_one(tenant: Tenant, moving: Sequence[dict[str, Any]]) -> bool:
    used = sum(move["tenant_id"] == tenant.id for move in moving)
    return tenant.allow_preemption and (tenant.preemptions_left is None or tenant.preemptions_left > used)


def _started(view: Present, other_jobs: set[int], moved: set[int], hot: set[int]) -> set[int]:
    """Return the jobs that start if `moved` are pending and have not released anything yet. `other_jobs` keep
    running."""
    snapshot = replace(
        view.snapshot,
        jobs=tuple(job for job in view.snapshot.jobs if job.id not in other_jobs),
        running=tuple(job for job in view.snapshot.running if job.job_id not in moved),
        nodes=tuple(_without_hot(node, hot) for node in view.snapshot.nodes),
    )
    decided = plan(snapshot, replace(view.policy, preemption=False), view.now)
    return {placement.job_id for placement in decided.placements}


def _without_hot(node: Node, hot: set[int]) -> Node:
    if not any(device.id in hot for device in node.devices):
        return node
    devices = tuple(replace(device, is_healthy=device.is_healthy and device.id not in hot) for device in node.devices)
    return replace(node, devices=devices)


def _move(row: dict[str, Any]) -> int:
    states.lock_jobs([row["job_id"]])
    if not query(_STILL_RUNS, [row["job_id"], row["attempt"]]):
        return 0  # it ended while the moves were planned, and may run elsewhere by now
    reason = f"has been hot for {row['minutes']} min{_celsius(row)}"
    evidence = {"by": f"GPU {row['gpu']} of {row['node']}", "why": reason, "rule": RULE}
    stopped = states.stop([row["job_id"]], EndReason.PREEMPTED, evidence, "scheduler")
    if stopped:
        _record_incident(row, MOVED, f"moved {_describe(row)}")
        observe("gpu_scheduler_preemptions_total", {RULE: [1.0]})
        events.changed("jobs", stopped)
        events.changed("nodes", [row["node_id"]])
        wake.request_cycle()
        logger.warning(
            "job %d is moved off %s, which %s", row["job_id"], evidence["by"], reason, extra={"job_id": row["job_id"]}
        )
    return len(stopped)


def _record_would_move(row: dict[str, Any]) -> int:
    return _record_incident(row, WOULD_MOVE, f"would have moved {_describe(row)}")


def _record_incident(row: dict[str, Any], kind: str, cause: str) -> int:
    job = f"moved job {row['job_id']} off"
    return incidents.record_once(row["node_id"], row["device_id"], kind, cause, part=job, since=row["since"])


def _describe(row: dict[str, Any]) -> str:
    return (
        f"job {row['job_id']} off GPU {row['gpu']} of {row['node']} after {row['minutes']} min of heat{_celsius(row)}"
    )


def _celsius(row: dict[str, Any]) -> str:
    return "" if row["celsius"] is None else f" ({row['celsius']} °C)"
