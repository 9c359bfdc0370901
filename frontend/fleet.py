"""The rows of topic `nodes`: each node with its devices, who holds them, and whether they work."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpusched.lib.sql import query
from gpusched.lib.times import rfc3339
from nodes.cells import CELL, HOLDERS

Row = dict[str, Any]
# Signs of life are told to this precision: to the second, every row of a calm fleet would be sent anew each second.
_SLOT_SECONDS = 5

_NODES = """
    SELECT n.id, n.name, n.state, n.intent, n.intent_note, n.pretend, n.cpu_cores, n.memory_mb, n.labels, n.hostname,
           n.agent_version, n.driver_version, n.runtimes, n.last_seen_at,
           coalesce(s.cpu, 0) AS cpu_held, coalesce(s.memory, 0) AS memory_held
      FROM nodes_node n
      LEFT JOIN (SELECT node_id, sum(cpu_milli) AS cpu, sum(memory_mb) AS memory
                   FROM nodes_assignment WHERE state <> 'ended' GROUP BY node_id) s ON s.node_id = n.id
     WHERE %(names)s::text[] IS NULL OR n.name = ANY(%(names)s) ORDER BY n.name
"""
_DEVICES = f"""
    SELECT d.id, d.node_id, d.index, d.uuid, d.model, d.memory_mb, d.health, d.health_note, d.is_slowed,
           d.held_whole, d.held_mb, greatest(r.idle_since, h.since) AS idle_since, r.read_at, r.utilisation_percent,
           r.memory_used_mb, r.temperature_celsius, r.power_watts, {CELL} AS cell
      FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id LEFT JOIN nodes_reading r ON r.device_id = d.id
      {HOLDERS} WHERE %(names)s::text[] IS NULL OR n.name = ANY(%(names)s) ORDER BY d.node_id, d.index, d.id
"""
_LIVE = """
    SELECT n.name AS node, s.job_id, j.tenant_id, t.name AS tenant, a.device_id, j.name, u.username AS "user",
           j.gpu_count, s.started_at + j.max_runtime_seconds * interval '1 second' AS ends_at
      FROM nodes_assignment s JOIN nodes_node n ON n.id = s.node_id JOIN jobs_job j ON j.id = s.job_id
      JOIN tenants_tenant t ON t.id = j.tenant_id JOIN auth_user u ON u.id = j.user_id
      LEFT JOIN nodes_allocation a ON a.assignment_id = s.id
     WHERE s.state <> 'ended' AND (%(names)s::text[] IS NULL OR n.name = ANY(%(names)s)) ORDER BY s.job_id, s.rank
"""


@dataclass(frozen=True)
class Fleet:
    """All nodes in the shape of docs/live.md but for `jobs` and `tenants`: what runs is kept apart, by node name and by
    device, because not everybody may see it."""

    nodes: list[Row]
    on_node: dict[str, list[Row]]
    on_device: dict[int, list[Row]]


def load(names: Collection[str] | None = None) -> Fleet:
    """All nodes, or those of these names."""
    given = {"names": None if names is None else list(names)}
    on_node: dict[str, list[Row]] = {}
    on_device: dict[int, list[Row]] = {}
    for live in query(_LIVE, given):
        on_node.setdefault(live["node"], []).append(live)
        if live["device_id"] is not None:
            on_device.setdefault(live["device_id"], []).append(live)
    devices: dict[int, list[Row]] = {}
    for row in query(_DEVICES, given):
        devices.setdefault(row["node_id"], []).append(row)
    nodes = [_node(row, devices.get(row["id"], [])) for row in query(_NODES, given)]
    return Fleet(nodes, on_node, on_device)


def restrict(fleet: Fleet, visible: Sequence[int] | None) -> dict[str, Row]:
    """By node name; of jobs and tenants only what may be seen. That a device is busy is everybody's to see."""
    allowed = None if visible is None else set(visible)
    return {node["name"]: _told_node(fleet, node, allowed) for node in fleet.nodes}


def _node(row: Row, devices: list[Row]) -> Row:
    names = ("name", "state", "intent", "intent_note", "pretend", "cpu_cores", "memory_mb", "labels", "hostname",
             "agent_version", "driver_version", "runtimes")  # fmt: skip
    return {
        **{name: row[name] for name in names},
        "cpu_cores_free": row["cpu_cores"] - float(row["cpu_held"]) / 1000,
        "memory_mb_free": row["memory_mb"] - int(row["memory_held"]),
        "last_seen_at": _slot(row["last_seen_at"]),
        "devices": [_device(device) for device in devices],
    }


def _device(row: Row) -> Row:
    reading = None
    if row["read_at"] is not None:
        reading = {
            "utilisation_percent": row["utilisation_percent"],
            "memory_used_mb": row["memory_used_mb"],
            "temperature_celsius": row["temperature_celsius"],
            "power_watts": None if row["power_watts"] is None else round(row["power_watts"]),
            "read_at": _slot(row["read_at"]),
        }
    names = ("id", "index", "uuid", "model", "memory_mb", "health", "health_note", "is_slowed", "cell")
    return {
        **{name: row[name] for name in names},
        "held": "exclusive" if row["held_whole"] else "shared" if row["held_mb"] else "free",
        "shared_mb": row["held_mb"],
        "idle_since": _slot(row["idle_since"]) if row["cell"] == "held_idle" else None,
        "reading": reading,
    }


def _slot(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return rfc3339(moment.replace(second=moment.second - moment.second % _SLOT_SECONDS, microsecond=0))


def _told_node(fleet: Fleet, node: Row, allowed: set[int] | None) -> Row:
    devices = []
    for device in node["devices"]:
        seen = _seen(fleet.on_device.get(device["id"]), allowed)
        jobs, tenants = sorted({live["job_id"] for live in seen}), sorted({live["tenant"] for live in seen})
        devices.append({**device, "jobs": jobs, "tenants": tenants})
    holders = {live["job_id"]: _holder(live) for live in _seen(fleet.on_node.get(node["name"]), allowed)}
    return {**node, "jobs": sorted(holders), "holders": {str(job): holders[job] for job in holders}, "devices": devices}


def _holder(live: Row) -> Row:
    """Whose job it is, and when it ends at the latest."""
    names = ("name", "user", "tenant", "gpu_count")
    return {**{name: live[name] for name in names}, "ends_at": rfc3339(live["ends_at"])}


def _seen(live: list[Row] | None, allowed: set[int] | None) -> list[Row]:
    return [row for row in live or () if allowed is None or row["tenant_id"] in allowed]
