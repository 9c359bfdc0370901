"""Load the devices in service, with the jobs and hard reservations that hold them, for choosing devices."""

from datetime import datetime
from math import inf
from typing import Any

import msgspec

from gpusched.lib.db.sql import query, rows
from gpusched.protocol import affinity as protocol
from scheduling.engine.affinity import Taint
from scheduling.reservations.choice import Holding, OfferedDevice, OfferedNode

_NODES = """
    SELECT n.id, n.name, n.cpu_cores * 1000 AS cpu_milli, n.memory_mb, (n.labels || n.admin_labels)::text AS labels,
           n.taints::text AS taints,
           (SELECT count(*) FROM nodes_devices d WHERE d.node_id = n.id) AS device_count
      FROM nodes_all n WHERE n.removed_at IS NULL AND n.state = 'online' AND n.intent = 'open' ORDER BY n.id
"""
# A device that was slowed down or is hot cools down; one with processes of others may never be free.
_DEVICES = """
    SELECT d.node_id, d.id, d.model, d.memory_mb, d.nvlink_island
      FROM nodes_devices d WHERE d.health IN ('ok', 'hot') ORDER BY d.node_id, d.index, d.id
"""
# Until when a job holds what it has, at the latest: its time limit and grace period, or the end of its reservation, if
# that is a hard one and has not ended before: otherwise the job continues.
_JOBS = """
    SELECT s.node_id, j.id, j.tenant_id, s.cpu_milli, s.memory_mb,
           (SELECT coalesce(array_agg(l.device_id), '{}') FROM nodes_allocations l WHERE l.assignment_id = s.id),
           extract(epoch FROM least(
               CASE WHEN j.state = 'stopping' THEN j.reason_since + make_interval(secs => j.grace_seconds) END,
               coalesce(j.started_at, a.scheduled_at)
                   + make_interval(secs => j.max_runtime_seconds + j.grace_seconds),
               CASE WHEN r.is_hard AND r.state IN ('planned', 'active') THEN r.ends_at END))::float8
      FROM nodes_ranks s JOIN jobs_all j ON j.id = s.job_id JOIN jobs_attempts a ON a.id = s.attempt_id
      LEFT JOIN scheduling_reservationuse u ON u.job_id = j.id AND u.attempt = s.number
      LEFT JOIN scheduling_reservation r ON r.id = u.reservation_id
     WHERE s.state <> 'ended'
"""
_RESERVED = """
    SELECT d.device_id, d.node_id, r.id, r.tenant_id, d.cpu_milli, d.memory_mb,
           extract(epoch FROM d.starts_at)::float8, extract(epoch FROM d.ends_at)::float8
      FROM scheduling_reserveddevice d JOIN scheduling_reservation r ON r.id = d.reservation_id
     WHERE (d.is_live OR %(soft)s AND NOT r.is_hard AND r.state IN ('planned', 'active'))
       AND d.ends_at > %(since)s
"""


def load_nodes(since: datetime, *, soft: bool = False) -> list[OfferedNode]:
    """Return the nodes in service and their holdings from `since` on. `soft`: soft reservations count, too."""
    of_devices: dict[int, list[Holding]] = {}
    of_nodes: dict[int, list[Holding]] = {}
    reserved = rows(_RESERVED, {"since": since, "soft": soft})
    for device_id, node_id, reservation_id, tenant_id, cpu, memory, starts_at, ends_at in reserved:
        holding = Holding(starts_at, ends_at, "reservation", reservation_id, tenant_id, cpu, memory)
        of_devices.setdefault(device_id, []).append(holding)
        of_nodes.setdefault(node_id, []).append(holding)
    for node_id, job_id, tenant_id, cpu, memory, device_ids, until in rows(_JOBS):
        holding = Holding(-inf, inf if until is None else until, "job", job_id, tenant_id, cpu, memory)
        of_nodes.setdefault(node_id, []).append(holding)
        for device_id in device_ids:
            of_devices.setdefault(device_id, []).append(holding)
    devices: dict[int, list[OfferedDevice]] = {}
    for node_id, device_id, model, memory_mb, island in rows(_DEVICES):
        holdings = tuple(of_devices.get(device_id, ()))
        devices.setdefault(node_id, []).append(OfferedDevice(device_id, model, memory_mb, island, holdings))
    return [_node(row, devices, of_nodes) for row in query(_NODES)]


def _node(
    row: dict[str, Any], devices: dict[int, list[OfferedDevice]], holdings: dict[int, list[Holding]]
) -> OfferedNode:
    taints = msgspec.json.decode(row["taints"], type=list[protocol.Taint])
    return OfferedNode(
        id=row["id"],
        name=row["name"],
        cpu_milli=row["cpu_milli"],
        memory_mb=row["memory_mb"],
        device_count=row["device_count"],
        devices=tuple(devices.get(row["id"], ())),
        labels=msgspec.json.decode(row["labels"], type=dict[str, str]),
        taints=tuple(Taint(taint.key, taint.value, str(taint.effect)) for taint in taints),
        holdings=tuple(holdings.get(row["id"], ())),
    )
