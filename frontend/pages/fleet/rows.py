"""The rows of topics `nodes` and `strip`: each node with its devices, their holders and health; reloads load only
changed nodes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from frontend.live.topics import Audience, Topic
from gpusched.lib.db.sql import Row, query
from gpusched.lib.times import rfc3339
from nodes import redaction
from nodes.health.gpu_status import GPU_STATUS, HOLDERS
from tenants.auth.page_access import Visible

_SELECTED = """(%(names)s::text[] IS NULL OR n.name = ANY(%(names)s))
             AND (%(ids)s::bigint[] IS NULL OR n.id = ANY(%(ids)s::bigint[]))"""
# Precision of last-seen times: finer ones would resend every row of a calm fleet each second.
SLOT_SECONDS = 5
# Cached rows of a node, one for each set of visible tenants; beyond this each full reload begins anew. Those of 200
# nodes with 8 GPUs take a megabyte for each set.
MAX_RESTRICTED = 50

_NODES = f"""
    SELECT n.id, n.name, n.state, n.intent, n.intent_note, n.pretend, n.cpu_cores, n.memory_mb,
           n.labels || n.admin_labels AS labels, n.taints, n.hostname,
           n.agent_version, n.driver_version, n.runtimes, n.last_seen_at,
           coalesce(s.cpu, 0) AS cpu_held, coalesce(s.memory, 0) AS memory_held
      FROM nodes_all n
      LEFT JOIN (SELECT node_id, sum(cpu_milli) AS cpu, sum(memory_mb) AS memory
                   FROM nodes_ranks WHERE state <> 'ended' GROUP BY node_id) s ON s.node_id = n.id
     WHERE n.removed_at IS NULL AND {_SELECTED} ORDER BY n.name
"""
_DEVICES = f"""
    SELECT d.id, d.node_id, d.index, d.uuid, d.model, d.memory_mb, d.health, d.health_note, d.is_slowed,
           d.held_whole, d.held_mb, greatest(r.idle_since, h.since) AS idle_since, {GPU_STATUS} AS cell
      FROM nodes_devices d JOIN nodes_all n ON n.id = d.node_id LEFT JOIN nodes_readings r ON r.device_id = d.id
      {HOLDERS} WHERE {_SELECTED} ORDER BY d.node_id, d.index, d.id
"""
_LIVE = f"""
    SELECT n.name AS node, s.job_id, j.tenant_id, t.name AS tenant, a.device_id, j.name, u.username AS "user",
           j.gpu_count, s.started_at + j.max_runtime_seconds * interval '1 second' AS ends_at
      FROM nodes_ranks s JOIN nodes_all n ON n.id = s.node_id JOIN jobs_all j ON j.id = s.job_id
      JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id
      LEFT JOIN nodes_allocations a ON a.assignment_id = s.id
     WHERE s.state <> 'ended' AND {_SELECTED} ORDER BY s.job_id, s.rank
"""


_OF_JOBS = "SELECT DISTINCT node_id FROM nodes_ranks WHERE job_id = ANY(%s)"


@dataclass(eq=False)
class Member:
    """A node as in docs/live.md, without its jobs, which depend on the viewer. `restricted`: cached rows by visible
    tenants."""

    id: int
    row: Row
    live: list[Row]
    restricted: dict[Visible, Row] = field(default_factory=dict)


@dataclass(frozen=True)
class Fleet:
    """Nodes by name, sorted."""

    members: dict[str, Member]

    @property
    def nodes(self) -> list[Row]:
        return [member.row for member in self.members.values()]


def load(names: Collection[str] | None = None, *, ids: Collection[int] | None = None) -> Fleet:
    """Load all nodes, or those with these names or ids."""
    params = {"names": None if names is None else list(names), "ids": None if ids is None else list(ids)}
    live: dict[str, list[Row]] = {}
    for row in query(_LIVE, params):
        live.setdefault(row["node"], []).append(row)
    devices: dict[int, list[Row]] = {}
    for row in query(_DEVICES, params):
        devices.setdefault(row["node_id"], []).append(row)
    return Fleet(
        {
            row["name"]: Member(row["id"], _node(row, devices.get(row["id"], [])), live.get(row["name"], []))
            for row in query(_NODES, params)
        }
    )


def reload(previous: Fleet, node_ids: Collection[int] | None, job_ids: Collection[int]) -> Fleet:
    """Reload these nodes (None: all) and the nodes of these jobs."""
    if node_ids is None:
        ids = None
    else:
        ids = {*node_ids, *(row["node_id"] for row in (query(_OF_JOBS, [list(job_ids)]) if job_ids else ()))}
        if not ids:
            return previous
    reloaded = load(ids=ids).members
    retained = {} if ids is None else {name: old for name, old in previous.members.items() if old.id not in ids}
    for name, member in reloaded.items():
        old = previous.members.get(name)
        if old is not None and len(old.restricted) <= MAX_RESTRICTED and _is_same(old, member):
            member.restricted = old.restricted
    members = {**retained, **reloaded}
    return Fleet({name: members[name] for name in sorted(members)})


def _is_same(old: Member, new: Member) -> bool:
    return _without_last_seen(old.row) == _without_last_seen(new.row) and old.live == new.live


def restrict(fleet: Fleet, visible: Sequence[int] | None) -> dict[str, Row]:
    """Return nodes by name with visible jobs and tenants; all viewers see whether a device is busy. An unchanged row
    keeps its identity."""
    visible_key = None if visible is None else tuple(visible)
    allowed = None if visible is None else set(visible)
    for member in fleet.members.values():
        if visible_key not in member.restricted:
            member.restricted[visible_key] = _restrict_node(member, allowed)
    return {name: member.restricted[visible_key] for name, member in fleet.members.items()}


def _node(row: Row, devices: list[Row]) -> Row:
    names = ("name", "state", "intent", "intent_note", "pretend", "cpu_cores", "memory_mb", "labels", "taints",
             "hostname", "agent_version", "driver_version", "runtimes")  # fmt: skip
    return {
        **{name: row[name] for name in names},
        "cpu_cores_free": row["cpu_cores"] - float(row["cpu_held"]) / 1000,
        "memory_mb_free": row["memory_mb"] - int(row["memory_held"]),
        "last_seen_at": slot(row["last_seen_at"]),
        "devices": [_device(device) for device in devices],
    }


def _device(row: Row) -> Row:
    names = ("id", "index", "uuid", "model", "memory_mb", "health", "health_note", "is_slowed", "cell")
    return {
        **{name: row[name] for name in names},
        "held": "exclusive" if row["held_whole"] else "shared" if row["held_mb"] else "free",
        "shared_mb": row["held_mb"],
        "idle_since": slot(row["idle_since"]) if row["cell"] == "held_idle" else None,
    }


def slot(moment: datetime | None) -> str | None:
    """Format a last-seen time, rounded down to its slot."""
    if moment is None:
        return None
    return rfc3339(moment.replace(second=moment.second - moment.second % SLOT_SECONDS, microsecond=0))


def _without_last_seen(node: Row) -> Row:
    """Return the row without `last_seen_at`, which the readings topic carries."""
    return {name: value for name, value in node.items() if name != "last_seen_at"}


def _restrict_node(member: Member, allowed: set[int] | None) -> Row:
    visible_live = [row for row in member.live if allowed is None or row["tenant_id"] in allowed]
    devices = []
    for device in member.row["devices"]:
        holding = [live for live in visible_live if live["device_id"] == device["id"]]
        jobs, tenants = sorted({live["job_id"] for live in holding}), sorted({live["tenant"] for live in holding})
        devices.append(redaction.redact_notes({**device, "jobs": jobs, "tenants": tenants}, allowed))
    holders = {live["job_id"]: _holder(live) for live in visible_live}
    restricted = {"jobs": sorted(holders), "holders": {str(job): holders[job] for job in holders}, "devices": devices}
    return redaction.redact_notes({**_without_last_seen(member.row), **restricted}, allowed)


def _holder(live: Row) -> Row:
    """Return the owner of a job and its latest end."""
    names = ("name", "user", "tenant", "gpu_count")
    return {**{name: live[name] for name in names}, "ends_at": rfc3339(live["ends_at"])}


def strip(fleet: Fleet) -> dict[str, Row]:
    """Return the cells of each node in columns: a tenth of `nodes`, and the same for all viewers."""
    columns = {"indexes": "index", "cells": "cell"}
    return {
        node["name"]: {plural: [device[name] for device in node["devices"]] for plural, name in columns.items()}
        for node in fleet.nodes
    }


TOPICS = (
    Topic(
        "nodes",
        lambda _requested, _loaded: load(),
        lambda fleet, _, viewer: restrict(fleet, viewer.visible),
        reload=reload,
        invalidated_by=frozenset({"jobs", "nodes", "tenants", "assignments"}),
    ),
    Topic(
        "strip",
        lambda _, loaded: strip(loaded["nodes"]),
        lambda rows, _key, _viewer: rows,
        needs=("nodes",),
        audience=Audience.ALL,
        invalidated_by=frozenset({"jobs", "nodes", "assignments"}),
    ),
)
