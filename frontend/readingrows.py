"""The rows of topic `readings`: the latest look at each device of each node, in columns, and when the node was seen.

Apart from `nodes`, because they change each second and the nodes seldom, and because everybody sees the same."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from frontend.fleet import slot
from gpusched.lib.sql import rows as tuples

Row = dict[str, Any]
COLUMNS = ("read_at", "utilisation_percent", "memory_used_mb", "temperature_celsius", "power_watts")

_READINGS = """
    SELECT n.name, n.last_seen_at, d.id, r.read_at, r.utilisation_percent, r.memory_used_mb, r.temperature_celsius,
           round(r.power_watts)::int
      FROM nodes_node n LEFT JOIN nodes_device d ON d.node_id = n.id LEFT JOIN nodes_reading r ON r.device_id = d.id
     ORDER BY n.name, d.index, d.id
"""


def load() -> dict[str, Row]:
    """By node name: `last_seen_at`, `devices` (ids), and a list in that order for each of COLUMNS."""
    found: dict[str, Row] = {}
    texts: dict[datetime | None, str | None] = {}
    for name, seen_at, device_id, read_at, *read in tuples(_READINGS):
        row = found.get(name)
        if row is None:
            row = found[name] = {"last_seen_at": slot(seen_at), "devices": [], **{column: [] for column in COLUMNS}}
        if device_id is None:
            continue
        if read_at not in texts:
            texts[read_at] = slot(read_at)
        row["devices"].append(device_id)
        for column, value in zip(COLUMNS, (texts[read_at], *read), strict=True):
            row[column].append(value)
    return found


def restrict(loaded: dict[str, Row], visible: Sequence[int] | None) -> dict[str, Row]:
    """That of everybody: how busy and how hot a device is says nothing of who holds it."""
    return loaded


def joined(nodes: Mapping[str, Row], readings: Mapping[str, Row]) -> list[Row]:
    """Rows of `nodes` with `last_seen_at` and, at each device, its `reading`; as the page's script joins them."""
    return [_joined(node, readings.get(name)) for name, node in nodes.items()]


def _joined(node: Row, read: Row | None) -> Row:
    if read is None:
        return {**node, "last_seen_at": None, "devices": [{**device, "reading": None} for device in node["devices"]]}
    by_id = {
        device_id: dict(zip(COLUMNS, values, strict=True))
        for device_id, *values in zip(read["devices"], *(read[column] for column in COLUMNS), strict=True)
    }
    devices = []
    for device in node["devices"]:
        reading = by_id.get(device["id"])
        devices.append({**device, "reading": reading if reading and reading["read_at"] else None})
    return {**node, "last_seen_at": read["last_seen_at"], "devices": devices}
