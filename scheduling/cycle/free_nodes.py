"""Load the nodes for the engine's snapshot, with what running jobs leave free."""

from typing import Any

import msgspec
from django.conf import settings

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import columns, prepared_rows
from gpusched.protocol import affinity as protocol
from scheduling.cycle.eras import Era
from scheduling.engine.affinity import Taint
from scheduling.engine.model import Device, Node, RunningJob

# For nodes as n: a lost node counts as capacity for this long, since it may come back any moment; after that, what only
# it could hold can never run (A42). Counted from when the loss was recorded, not from the last message: after an outage
# of the control plane every node has been silent for as long as the outage took.
IS_CAPACITY = """n.removed_at IS NULL AND (n.state <> 'lost' OR EXISTS (
    SELECT 1 FROM nodes_incidents lost WHERE lost.node_id = n.id AND lost.device_id IS NULL AND lost.kind = 'node_lost'
       AND lost.until IS NULL AND lost.since > now() - make_interval(secs => %(capacity_seconds)s)))"""
_NODES = f"""
    SELECT id, name, state = 'online', intent = 'open', cpu_cores, memory_mb,
           -- The labels that jobs with an image require (protocol.jobs.runtime_label).
           (CASE WHEN runtimes = '{{}}' THEN labels || admin_labels
                 ELSE labels || admin_labels || '{{"container runtime": "yes"}}'
                             || (SELECT jsonb_object_agg('container runtime ' || name, 'yes')
                                   FROM jsonb_object_keys(runtimes) AS name) END)::text, taints::text
      FROM nodes_all n WHERE {IS_CAPACITY} ORDER BY id
"""
# A hot device that a job was moved off gets no job before it has cooled.
IS_VACATED = """EXISTS (
    SELECT 1 FROM nodes_incidents hot JOIN nodes_incidents moved
        ON moved.device_id = hot.device_id AND moved.kind = 'moved' AND moved.since >= hot.since
     WHERE hot.device_id = d.id AND hot.until IS NULL)"""
_DEVICES = f"""
    SELECT d.node_id, d.id, d.model, d.memory_mb, d.health IN ('ok', 'hot'), d.held_whole > 0, d.held_mb,
           d.health = 'hot', d.is_slowed OR d.health = 'hot' AND {IS_VACATED},
           CASE WHEN d.held_mb > 0 THEN (
                SELECT floor(r.utilisation_percent / 10.0)::float8 / 10 FROM nodes_readings r
                 WHERE r.device_id = d.id AND r.read_at > now() - interval '10 seconds') END,
           d.numa_node, d.nvlink_island
      FROM nodes_devices d WHERE d.node_id = ANY(%s::bigint[]) ORDER BY d.node_id, d.index, d.id
"""
# Most devices are unchanged since the last cycle, so of each node only a hash of their row versions is read. What a hot
# or a shared device offers also depends on other rows and on the time.
_DIGESTS = """
    SELECT node_id, bit_xor(hashint8extended(id, row_version)), bool_or(health = 'hot' OR held_mb > 0)
      FROM nodes_devices GROUP BY node_id
"""
_DeviceRows = list[tuple[Any, ...]]
_devices: Cache[Era, dict[int, tuple[int, _DeviceRows]]] = Cache()
# Nodes with what they were made from.
_NodeBasis = tuple[tuple[Any, ...], _DeviceRows, int, int]
_nodes: Cache[None, dict[int, tuple[_NodeBasis, Node]]] = Cache()


def capacity_seconds() -> float:
    """Return how long a lost node counts as capacity: the parameter of IS_CAPACITY."""
    return settings.ENV.lost_node_capacity_seconds


def nodes(era: Era, running: tuple[RunningJob, ...] = ()) -> tuple[Node, ...]:
    """Load all nodes, with the CPU and memory that `running` leaves free. `era`: the present one."""
    cpu_used: dict[int, int] = {}
    memory_used: dict[int, int] = {}
    for job in running:
        for rank in job.ranks:
            cpu_used[rank.node_id] = cpu_used.get(rank.node_id, 0) + rank.cpu_milli
            memory_used[rank.node_id] = memory_used.get(rank.node_id, 0) + rank.memory_mb
    devices = _load_devices(era)
    previous, present = _nodes.last(None, {}), {}
    for row in prepared_rows(_NODES, {"capacity_seconds": capacity_seconds()}):
        node_id = row[0]
        basis = (row, devices.get(node_id, []), cpu_used.get(node_id, 0), memory_used.get(node_id, 0))
        known = previous.get(node_id)
        present[node_id] = known if known is not None and known[0] == basis else (basis, _node(*basis))
    return tuple([node for _, node in _nodes.put(None, present).values()])


def _load_devices(era: Era) -> dict[int, _DeviceRows]:
    """Return the rows of the devices by node."""
    known = _devices.last(era, {})
    digests = prepared_rows(_DIGESTS)
    changed = {id for id, digest, is_timed in digests if is_timed or id not in known or known[id][0] != digest}
    read: dict[int, _DeviceRows] = {id: [] for id in changed}
    for row in prepared_rows(_DEVICES, columns([(id,) for id in changed], 1)) if changed else ():
        read[row[0]].append(row)
    devices = {id: (digest, read[id]) if id in changed else known[id] for id, digest, _ in digests}
    _devices.put(era, devices)
    return {id: rows for id, (_, rows) in devices.items()}


def _node(row: tuple[Any, ...], devices: list[tuple[Any, ...]], cpu_milli_used: int, memory_mb_used: int) -> Node:
    node_id, name, is_online, is_open, cores, memory_mb, labels, taints = row
    return Node(
        id=node_id,
        name=name,
        cpu_milli=cores * 1000,
        memory_mb=memory_mb,
        cpu_milli_free=cores * 1000 - cpu_milli_used,
        memory_mb_free=memory_mb - memory_mb_used,
        labels=msgspec.json.decode(labels),
        is_open=is_open,
        is_online=is_online,
        devices=tuple([Device(*device) for _, *device in devices]),
        taints=_taints(taints) if taints != "[]" else (),
    )


def _taints(text: str) -> tuple[Taint, ...]:
    taints = msgspec.json.decode(text, type=list[protocol.Taint])
    return tuple(sorted(Taint(taint.key, taint.value, str(taint.effect)) for taint in taints))
