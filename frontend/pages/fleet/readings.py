"""The rows of topic `readings`: the latest reading of each device by node, in columns, and when the node was last seen.

Separate from `nodes`, because readings change every second, nodes seldom, and all viewers share readings."""

from collections.abc import Sequence
from datetime import UTC, datetime

from frontend.live.topics import Audience, Topic
from frontend.pages.fleet.rows import SLOT_SECONDS
from gpusched.lib.db.sql import Row
from gpusched.lib.db.sql import rows as tuples
from gpusched.lib.times import rfc3339

COLUMNS = ("read_at", "utilisation_percent", "memory_used_mb", "temperature_celsius", "power_watts")
_SLOT = f"floor(extract(epoch FROM {{}}) / {SLOT_SECONDS})::bigint"

# In columns, with times as slot numbers: 1,600 rows with timestamps took ten times as long.
_COLUMN = "array_agg({} ORDER BY d.index, d.id) FILTER (WHERE d.id IS NOT NULL)"
_READINGS = """
    SELECT n.name, {slot}, {columns}
      FROM nodes_all n LEFT JOIN nodes_devices d ON d.node_id = n.id LEFT JOIN nodes_readings r ON r.device_id = d.id
     WHERE n.removed_at IS NULL GROUP BY n.id, n.name, n.last_seen_at ORDER BY n.name
""".format(
    slot=_SLOT.format("n.last_seen_at"),
    columns=", ".join(
        _COLUMN.format(sql)
        for sql in ("d.id", _SLOT.format("r.read_at"), "r.utilisation_percent", "r.memory_used_mb",
                    "r.temperature_celsius", "round(r.power_watts)::int")
    ),
)  # fmt: skip


def load() -> dict[str, Row]:
    """Return by node `last_seen_at`, `devices` (ids) and a list in that order for each of COLUMNS."""
    nodes: dict[str, Row] = {}
    texts: dict[int | None, str | None] = {None: None}
    for name, last_seen, devices, slots, *readings in tuples(_READINGS):
        for slot in (last_seen, *(slots or ())):
            if slot not in texts:
                texts[slot] = rfc3339(datetime.fromtimestamp(slot * SLOT_SECONDS, UTC))
        columns = [[texts[slot] for slot in slots or ()], *([] if column is None else column for column in readings)]
        nodes[name] = {
            "last_seen_at": texts[last_seen],
            "devices": devices or [],
            **dict(zip(COLUMNS, columns, strict=True)),
        }
    return nodes


def restrict(loaded: dict[str, Row], visible: Sequence[int] | None) -> dict[str, Row]:
    """Return all readings: they do not reveal the holder of a device."""
    return loaded


TOPICS = (
    # Readings have no event, as they change all the time.
    Topic(
        "readings",
        lambda _requested, _loaded: load(),
        lambda rows, _, viewer: restrict(rows, viewer.visible),
        audience=Audience.ALL,
        period_seconds=1.0,
        pause_seconds=0.9,
    ),
)
