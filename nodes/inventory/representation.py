"""Represent nodes and devices for the API and pages."""

from typing import Any

from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol import throttling
from nodes import redaction

_NODES = """
    SELECT n.id, n.name, n.state, n.intent, n.intent_note, n.pretend, n.cpu_cores, n.memory_mb,
           n.labels || n.admin_labels AS labels, n.taints, n.agent_version,
           n.driver_version, n.runtimes, n.isolation, n.hints, n.hostname, n.last_seen_at, n.joined_at,
           coalesce(n.credential_at, n.joined_at) AS credential_at, n.rotation_asked_at,
           n.clock_off_seconds,
           (SELECT jsonb_object_agg(m.unix_user, m.detail) FROM nodes_missinguser m
             WHERE m.node_id = n.id) AS missing_users,
           coalesce(s.cpu, 0) AS cpu_held, coalesce(s.memory, 0) AS memory_held, coalesce(s.jobs, '[]') AS jobs
      FROM nodes_node n
      LEFT JOIN (SELECT s.node_id, sum(s.cpu_milli) AS cpu, sum(s.memory_mb) AS memory,
                        json_agg(DISTINCT jsonb_build_array(s.job_id, j.tenant_id)) AS jobs
                   FROM nodes_assignment s JOIN jobs_all j ON j.id = s.job_id
                  WHERE s.state <> 'ended' GROUP BY s.node_id) s ON s.node_id = n.id
     WHERE n.removed_at IS NULL AND (%s::text IS NULL OR n.name = %s) ORDER BY n.name
"""
_DEVICES = """
    SELECT d.id, d.node_id, d.uuid, d.index, d.model, d.memory_mb, d.health, d.health_note, d.is_slowed,
           d.numa_node, d.nvlink_island, d.mig_parent, d.mig_slices, d.held_whole, d.held_mb,
           r.read_at, r.utilisation_percent, r.memory_used_mb, r.temperature_celsius, r.power_watts,
           r.power_limit_watts, r.sm_clock_mhz, r.memory_clock_mhz, r.ecc_corrected, r.ecc_uncorrected,
           r.process_count, r.throttle_reasons,
           (SELECT json_agg(json_build_array(s.job_id, j.tenant_id) ORDER BY s.job_id)
              FROM nodes_allocation a JOIN nodes_assignment s ON s.id = a.assignment_id
              JOIN jobs_all j ON j.id = s.job_id
             WHERE a.device_id = d.id) AS jobs
      FROM nodes_device d LEFT JOIN nodes_reading r ON r.device_id = d.id
     WHERE %s::bigint[] IS NULL OR d.node_id = ANY(%s) ORDER BY d.node_id, d.index
"""
_READ = (
    "utilisation_percent", "memory_used_mb", "temperature_celsius", "power_watts", "power_limit_watts", "sm_clock_mhz",
    "memory_clock_mhz", "ecc_corrected", "ecc_uncorrected", "process_count",
)  # fmt: skip


def nodes(visible: list[int] | None, name: str | None = None) -> list[dict[str, Any]]:
    """Return all nodes, or the one with that name. `visible`: the tenants whose job ids are included; None: all, and
    the texts that nodes.redaction hides from others."""
    rows = query(_NODES, [name, name])
    ids = None if name is None else [row["id"] for row in rows]
    devices: dict[int, list[dict[str, Any]]] = {row["id"]: [] for row in rows}
    for row in query(_DEVICES, [ids, ids]):
        devices.setdefault(row["node_id"], []).append(device(row, visible))
    return [_node(row, devices[row["id"]], visible) for row in rows]


def _node(row: dict[str, Any], devices: list[dict[str, Any]], visible: list[int] | None) -> dict[str, Any]:
    names = ("name", "state", "intent", "intent_note", "pretend", "cpu_cores", "memory_mb", "labels", "taints",
             "agent_version", "driver_version", "runtimes", "isolation", "hostname", "clock_off_seconds")  # fmt: skip
    represented = {
        **{name: row[name] for name in names},
        "missing_users": row["missing_users"] or {},
        "hints": sorted(row["hints"], key=lambda hint: hint["level"] != "fail"),
        "cpu_cores_free": row["cpu_cores"] - row["cpu_held"] / 1000,
        "memory_mb_free": row["memory_mb"] - int(row["memory_held"]),
        "last_seen_at": rfc3339(row["last_seen_at"]),
        "joined_at": rfc3339(row["joined_at"]),
        "credential_at": rfc3339(row["credential_at"]),
        "rotation_asked_at": rfc3339(row["rotation_asked_at"]),
        "jobs": _visible_jobs(row["jobs"], visible),
        "devices": devices,
    }
    return redaction.redact_notes(represented, visible)


def device(row: dict[str, Any], visible: list[int] | None) -> dict[str, Any]:
    """Represent a device. `held`: free, shared or exclusive. `reading` is None before the first one; its unknown fields
    are None."""
    reading = None
    if row["read_at"] is not None:
        reading = {
            **{name: row[name] for name in _READ},
            "throttled_by": throttling.reason_names(row["throttle_reasons"]),
            "read_at": rfc3339(row["read_at"]),
        }
    represented = {
        "id": row["id"],
        "uuid": row["uuid"],
        "index": row["index"],
        "model": row["model"],
        "memory_mb": row["memory_mb"],
        **{name: row[name] for name in ("numa_node", "nvlink_island", "mig_parent", "mig_slices")},
        "health": row["health"],
        "health_note": row["health_note"],
        "is_slowed": row["is_slowed"],
        "held": "exclusive" if row["held_whole"] else "shared" if row["held_mb"] else "free",
        "shared_mb": row["held_mb"],
        "jobs": _visible_jobs(row["jobs"], visible),
        "reading": reading,
    }
    return redaction.redact_notes(represented, visible)


def _visible_jobs(pairs: list[list[int]] | None, visible: list[int] | None) -> list[int]:
    return [job for job, tenant in pairs or [] if visible is None or tenant in visible]
