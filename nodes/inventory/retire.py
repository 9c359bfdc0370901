"""Retire devices that are permanently gone: lists and counts leave them out. If the agent reports one again, it is a
new device."""

from typing import Any

from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import execute, query
from nodes.models import Device

# `is_read`: its online agent has read it within the last minute, and the driver had not lost it.
_DEVICE = """
    SELECT d.id, d.node_id, n.name AS node, d.index, d.uuid, d.model, d.held_whole > 0 OR d.held_mb > 0 AS is_held,
           coalesce(n.state = 'online' AND d.health <> 'lost' AND r.occupancy IS DISTINCT FROM 'lost'
                    AND r.read_at > n.last_seen_at - interval '1 minute', false) AS is_read
      FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id LEFT JOIN nodes_reading r ON r.device_id = d.id
     WHERE d.id = %s FOR UPDATE OF d
"""
# Its incidents stay in the history of its node, with the device named in the cause.
_KEEP_INCIDENTS = """
    UPDATE nodes_incident
       SET device_id = NULL, until = coalesce(until, clock_timestamp()), cause = left(%s || cause, 200)
     WHERE device_id = %s
"""
_KEEP_ALL_INCIDENTS = """
    UPDATE nodes_incident i
       SET device_id = NULL, until = coalesce(i.until, clock_timestamp()),
           cause = left('GPU ' || d.index || ' (' || d.uuid || '), retired since: ' || i.cause, 200)
      FROM nodes_device d WHERE d.id = i.device_id AND d.node_id = %s
"""


def retire(device_id: int) -> str:
    """Delete a device with its readings, samples and roll-ups; ledger and incidents stay. Return a message. Inside a
    transaction. 404 for an unknown id; 409 while a job holds it or its agent reads it."""
    rows = query(_DEVICE, [device_id])
    if not rows:
        raise not_found(f"GPU {device_id}")
    device = rows[0]
    name = f"GPU {device['index']} of {device['node']}"
    _require_gone(device, name)
    execute(_KEEP_INCIDENTS, [f"GPU {device['index']} ({device['uuid']}), retired since: ", device_id])
    Device.objects.get(pk=device_id).delete()
    log.record("gpu.retire", name, {key: device[key] for key in ("uuid", "model")}, None)
    events.changed("nodes", [device["node_id"]])
    wake.request_cycle()
    return f"{name} is retired; it comes back by itself if its agent names it again"


def retire_all(node_id: int) -> None:
    """Delete all devices of a node that is removed; ledger and incidents stay. Inside a transaction."""
    execute(_KEEP_ALL_INCIDENTS, [node_id])
    Device.objects.filter(node_id=node_id).delete()


def _require_gone(device: dict[str, Any], name: str) -> None:
    if device["is_held"]:
        raise Problem(409, "in_use", f"a job holds {name}", next_step="wait for its end, or cancel it")
    if device["is_read"]:
        raise Problem(
            409,
            "wrong_state",
            f"{name} is still present: its agent reads it",
            next_step="quarantine it to keep jobs off, or take it out of the machine first",
        )
