"""The rows of topics `node:<name>`: a node, its devices, running jobs and incidents."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from frontend.live.topics import Topic, key_by
from frontend.pages.fleet import rows as fleet
from gpusched.lib.db.sql import Row, prepared
from gpusched.lib.times import rfc3339
from gpusched.protocol import throttling
from nodes import redaction
from nodes.health import incidents
from tenants.auth.page_access import Visible

_NODES = "SELECT name, joined_at, isolation, hints FROM nodes_all WHERE name = ANY(%s) AND removed_at IS NULL"
_DEVICES = """
    SELECT n.name AS node, d.id, d.mig_parent, d.numa_node, d.nvlink_island, r.read_at, r.utilisation_percent,
           r.memory_used_mb, r.temperature_celsius, r.power_watts, r.process_count, r.occupancy,
           r.occupant, r.throttle_reasons, r.power_limit_watts, r.ecc_corrected, r.ecc_uncorrected
      FROM nodes_devices d JOIN nodes_all n ON n.id = d.node_id LEFT JOIN nodes_readings r ON r.device_id = d.id
     WHERE n.name = ANY(%s)
"""
_RUNNING = """
    SELECT n.name AS node, j.id, j.tenant_id, j.name, t.name AS tenant, u.username AS "user", j.state, j.priority,
           j.attempt, j.started_at, j.gpu_count, count(DISTINCT l.device_id) AS gpus, count(DISTINCT s.id) AS ranks,
           array_agg(DISTINCT d.index) FILTER (WHERE d.index IS NOT NULL) AS indices
      FROM nodes_ranks s JOIN nodes_all n ON n.id = s.node_id JOIN jobs_all j ON j.id = s.job_id
      JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id
      LEFT JOIN nodes_allocations l ON l.assignment_id = s.id LEFT JOIN nodes_devices d ON d.id = l.device_id
     WHERE n.name = ANY(%s) AND s.state <> 'ended'
     GROUP BY n.name, j.id, j.tenant_id, j.name, t.name, u.username, j.state, j.priority, j.attempt, j.started_at,
              j.gpu_count
     ORDER BY j.id
"""


@dataclass
class NodeDetail:
    """Details of a node beyond the list of nodes; jobs have tenants, and incidents have causes."""

    about: Row
    devices: dict[int, Row] = field(default_factory=dict)
    jobs: list[Row] = field(default_factory=list)
    incidents: list[Row] = field(default_factory=list)


@dataclass
class Nodes:
    listed: fleet.Fleet
    details: dict[str, NodeDetail]


def load(names: Collection[str]) -> Nodes:
    """Load the nodes that exist."""
    requested = sorted(names)
    details = {
        row["name"]: NodeDetail(
            {"joined_at": rfc3339(row["joined_at"]), "isolation": row["isolation"], "hints": row["hints"]}
        )
        for row in prepared(_NODES, [requested])
    }
    for row in prepared(_DEVICES, [requested]):
        details[row.pop("node")].devices[row["id"]] = row
    for row in running(requested):
        job = {name: row[name] for name in row if name not in ("node", "gpu_count", "indices")}
        details[row["node"]].jobs.append({**job, "started_at": rfc3339(row["started_at"])})
    for name, rows in incidents.of_nodes(details).items():
        details[name].incidents = [
            {**row, "since": rfc3339(row["since"]), "until": rfc3339(row["until"])} for row in rows
        ]
    return Nodes(fleet.load(requested), details)


def running(names: Collection[str]) -> list[Row]:
    """Return jobs with a rank on these nodes, each with its `node` and its GPUs there."""
    return prepared(_RUNNING, [sorted(names)])


def restrict(loaded: Nodes, name: str, visible: Visible) -> dict[str, Row] | None:
    """Return the rows of a node, or None. Jobs that the viewer cannot see are only counted, with their GPUs."""
    detail = loaded.details.get(name)
    listed = fleet.restrict(loaded.listed, visible).get(name)
    if detail is None or listed is None:
        return None
    about = {key: value for key, value in listed.items() if key != "devices"}
    rows = {"node": redaction.redact_notes({**about, **detail.about}, visible)}
    for device in listed["devices"]:
        rows |= _device(device, redaction.redact_notes(detail.devices.get(device["id"], {}), visible))
    hidden_jobs = [job for job in detail.jobs if visible is not None and job["tenant_id"] not in visible]
    rows["others"] = {"jobs": len(hidden_jobs), "gpus": sum(job["gpus"] for job in hidden_jobs)}
    for job in detail.jobs:
        if job not in hidden_jobs:
            rows[f"job:{job['id']}"] = {key: value for key, value in job.items() if key != "tenant_id"}
    for incident in detail.incidents:
        rows[f"incident:{incident['id']}"] = redaction.redact_notes(incident, visible)
    return rows


def _device(listed: Row, more: Row) -> dict[str, Row]:
    """Return a device and, separately, its reading, which changes every second."""
    moments = {
        "read_at": fleet.slot(more.get("read_at")),
        "throttled_by": throttling.reason_names(more.get("throttle_reasons")),
    }
    names = ("utilisation_percent", "memory_used_mb", "temperature_celsius", "power_watts", "power_limit_watts",
             "process_count", "ecc_corrected", "ecc_uncorrected")  # fmt: skip
    fixed = ("mig_parent", "numa_node", "nvlink_island", "occupancy", "occupant")
    return {
        f"device:{listed['id']}": {**listed, **{name: more.get(name) for name in fixed}},
        f"reading:{listed['id']}": {"id": listed["id"], **moments, **{name: more.get(name) for name in names}},
    }


TOPICS = (
    Topic(
        "node",
        lambda requested, _: load({name for name, _viewer in requested}),
        lambda nodes, name, viewer: restrict(nodes, name, viewer.visible),
        key_of=key_by(re.compile(r"node:([^\x00]{1,253})")),
        invalidated_by=frozenset({"jobs", "nodes", "tenants", "assignments"}),
        period_seconds=1.0,
    ),
)
