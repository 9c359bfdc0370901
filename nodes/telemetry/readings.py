"""Store heartbeats, hardware facts and readings of many nodes at once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import as_json, columns, execute, prepared
from gpusched.lib.hooks import hook
from gpusched.protocol import xids
from gpusched.protocol.agent_messages import DeviceFacts, Hint, Isolation, NodeFacts, Reading
from nodes.health import device_health, thermal

# Agents report an Xid for a minute; older ones are ignored.
MAX_SECONDS_AGO = 3600
_MAX_HINTS = 20
MAX_SMALLINT = 32_767
MAX_WATTS = 100_000.0
_HEARTBEAT = """
    WITH old AS (SELECT id, state FROM nodes_node WHERE id = ANY(%s) AND removed_at IS NULL ORDER BY id FOR UPDATE)
    UPDATE nodes_node n SET last_seen_at = clock_timestamp(), boot_id = t.boot_id, clock_off_seconds = t.off
      FROM old, unnest(%s::bigint[], %s::text[], %s::float8[]) AS t (id, boot_id, off)
     WHERE n.id = old.id AND n.id = t.id
    RETURNING n.id, n.state = 'online' AS is_online, n.rotation_asked_at IS NOT NULL AS is_rotation_asked
"""


class Heartbeat(NamedTuple):
    """A node that exists. `is_rotation_asked`: it is to get a new credential."""

    is_online: bool
    is_rotation_asked: bool


def record_heartbeats(nodes: Sequence[tuple[int, str, float | None]]) -> dict[int, Heartbeat]:
    """Record that nodes have sent a message, as (node, boot id, seconds that its clock is ahead), and lock them until
    the end of the transaction. Return those that exist, without removed ones."""
    rows = prepared(_HEARTBEAT, [[node[0] for node in nodes], *columns(nodes, 3)])
    return {row.pop("id"): Heartbeat(**row) for row in rows}


def mark_online(node_ids: Sequence[int]) -> None:
    """Let nodes that were lost, or have just joined, get jobs."""
    if node_ids:
        execute("UPDATE nodes_node SET state = 'online' WHERE id = ANY(%s)", [list(node_ids)])
        events.changed("nodes", node_ids)
        wake.request_cycle()


def store_facts(node_id: int, facts: NodeFacts) -> None:
    """Store what an agent reports of its machine. A device that it no longer lists is lost, and so is its reading; one
    that it lists again is back. Allocations stay as they are, and so does the memory of a device whose driver does not
    answer: the share of it that a job holds is what the job costs. A device never has less memory than jobs hold of
    it."""
    if not _store_machine(node_id, facts):
        return  # it was removed meanwhile
    _store_devices(node_id, facts)
    events.changed("nodes", [node_id])
    wake.request_cycle()


def _store_machine(node_id: int, facts: NodeFacts) -> int:
    return execute(
        "UPDATE nodes_node SET hostname = %s, boot_id = %s, agent_version = %s, cpu_cores = %s, memory_mb = %s,"
        " labels = %s::jsonb, driver_version = %s, runtimes = %s::jsonb, isolation = %s::jsonb,"
        " hints = %s::jsonb, pretend = %s WHERE id = %s AND removed_at IS NULL",
        [
            _text(facts.hostname, 253),
            _text(facts.boot_id, 64),
            _text(facts.agent_version, 30),
            facts.cpu_cores,
            facts.memory_mb,
            as_json(facts.labels),
            _text(facts.driver_version or "", 50),
            as_json({_text(name, 30): _text(version, 50) for name, version in facts.runtimes.items()}),
            as_json(_isolation(facts.isolation)),
            as_json([_bounded(hint) for hint in facts.hints[:_MAX_HINTS]]),
            facts.pretend,
            node_id,
        ],
    )


def _store_devices(node_id: int, facts: NodeFacts) -> None:
    # A duplicate UUID would fail the statement.
    rows = list({row[1]: row for row in (_device_row(node_id, device) for device in facts.devices)}.values())
    execute(
        """INSERT INTO nodes_device (node_id, uuid, index, model, memory_mb, pci_bus_id, numa_node, nvlink_island,
                                     mig_parent, mig_slices, health, held_whole, held_mb)
           SELECT t.*, 'ok', 0, 0
             FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::text[], %s::int[], %s::text[], %s::int[], %s::int[],
                         %s::text[], %s::int[]) AS t
           ON CONFLICT (node_id, uuid) DO UPDATE
              SET index = excluded.index, model = excluded.model,
                  memory_mb = greatest(coalesce(excluded.memory_mb, nullif(nodes_device.memory_mb, 0)),
                                       nullif(nodes_device.held_mb, 0)),
                  pci_bus_id = excluded.pci_bus_id, numa_node = excluded.numa_node,
                  nvlink_island = excluded.nvlink_island, mig_parent = excluded.mig_parent,
                  mig_slices = excluded.mig_slices,
                  health = CASE WHEN nodes_device.health = 'lost' THEN 'ok' ELSE nodes_device.health END""",
        columns(rows, 10),
    )
    execute(
        "UPDATE nodes_device SET health = 'lost', health_note = '' WHERE node_id = %s AND uuid <> ALL(%s)"
        " AND health NOT IN ('lost', 'quarantined', 'degraded')",
        [node_id, [row[1] for row in rows]],
    )
    execute(_READ_LOST, [node_id, [row[1] for row in rows]])


def _device_row(node_id: int, device: DeviceFacts) -> tuple[Any, ...]:
    """Bound the facts of a device for storage: a value that no device can have is unknown, and costs no other fact."""
    return (
        node_id,
        _text(device.uuid, 80),
        _integer(device.index) or 0,
        _text(device.model, 200),
        _integer(device.memory_mb) or None,
        _text(device.pci_bus_id or "", 32),
        _integer(device.numa_node, MAX_SMALLINT),
        _integer(device.nvlink_island, MAX_SMALLINT),
        _text(device.mig_parent, 80) if device.mig_parent else None,
        _integer(device.mig_slices, MAX_SMALLINT),
    )


def _isolation(isolation: Isolation | None) -> dict[str, Any]:
    """Bound the isolation facts for storage. Empty for an agent that does not report them."""
    if isolation is None:
        return {}
    limits = [_text(limit, 30) for limit in isolation.limits[:10]]
    users, why = _text(isolation.users, 30), _text(isolation.why, 200)
    return {"cgroup": isolation.cgroup, "limits": limits, "users": users, "why": why}


def _bounded(hint: Hint) -> dict[str, str]:
    level = "fail" if hint.level == "fail" else "warn"
    says, next_step = _text(hint.says, 300), _text(hint.next_step, 300)
    return {"check": _text(hint.check, 30), "level": level, "says": says, "next_step": next_step}


# The columns of a reading and their types, except for its times.
_READ_COLUMNS = {
    "utilisation_percent": "int", "memory_used_mb": "int", "temperature_celsius": "int", "power_watts": "float8",
    "power_limit_watts": "int", "sm_clock_mhz": "int", "memory_clock_mhz": "int", "throttle_reasons": "bigint",
    "ecc_corrected": "bigint", "ecc_uncorrected": "bigint", "process_count": "int", "occupancy": "text",
    "occupant": "text",
}  # fmt: skip
_UPSERT = """
    INSERT INTO nodes_reading (device_id, read_at, idle_since, quiet_since, {names})
    SELECT d.id, clock_timestamp(), CASE WHEN t.utilisation_percent = 0 THEN clock_timestamp() END,
           CASE WHEN t.utilisation_percent < %s THEN clock_timestamp() END, {taken}
      FROM unnest(%s::bigint[], %s::text[], {arrays}) AS t (node_id, uuid, {names})
      JOIN nodes_device d ON d.node_id = t.node_id AND d.uuid = t.uuid
     ORDER BY d.id
    ON CONFLICT (device_id) DO UPDATE
       SET read_at = excluded.read_at, {kept},
           idle_since = CASE WHEN excluded.utilisation_percent = 0
                             THEN coalesce(nodes_reading.idle_since, excluded.idle_since) END,
           quiet_since = CASE WHEN nodes_reading.read_at > excluded.read_at - interval '1 minute'
                                   AND excluded.quiet_since IS NOT NULL
                              THEN coalesce(nodes_reading.quiet_since, excluded.quiet_since)
                              ELSE excluded.quiet_since END
""".format(
    names=", ".join(_READ_COLUMNS),
    taken=", ".join(f"t.{name}" for name in _READ_COLUMNS),
    arrays=", ".join(f"%s::{kind}[]" for kind in _READ_COLUMNS.values()),
    kept=", ".join(f"{name} = excluded.{name}" for name in _READ_COLUMNS),
)
# As of a device that the driver reports as lost: its latest values are not true any more.
_READ_LOST = """
    UPDATE nodes_reading r SET idle_since = NULL, quiet_since = NULL, {values}, occupancy = 'lost', occupant = ''
      FROM nodes_device d
     WHERE d.id = r.device_id AND d.node_id = %s AND d.uuid <> ALL(%s) AND r.occupancy IS DISTINCT FROM 'lost'
""".format(values=", ".join(f"{name} = NULL" for name in _READ_COLUMNS if not name.startswith("occupan")))


def store_readings(readings: Sequence[tuple[int, Reading]]) -> None:
    """Store (node, reading) pairs as the latest readings. Take devices out of service that the driver lost or that
    processes outside of jobs use."""
    rows: list[tuple[Any, ...]] = []
    losses: list[tuple[int, str, bool]] = []
    occupied: list[device_health.Observation] = []
    for node_id, r in {(node_id, r.uuid): (node_id, r) for node_id, r in readings}.values():
        losses.append((node_id, r.uuid, r.lost))
        processes = None if r.process_ids is None else len(r.process_ids)
        # An occupancy that only a newer agent reports counts as unknown.
        occupancy = "lost" if r.lost else r.occupancy if r.occupancy in device_health.OCCUPANCIES else None
        occupant = _text(r.occupant, 200) if occupancy in ("dirty", "foreign") else ""
        if occupancy is not None and not r.lost:
            occupied.append((node_id, r.uuid, occupancy, occupant))
        rows.append(
            (node_id, r.uuid, _integer(r.utilisation_percent, 100), _integer(r.memory_used_mb),
             _smallint(r.temperature_celsius), _watts(r.power_watts), _integer(r.power_limit_watts),
             _integer(r.sm_clock_mhz), _integer(r.memory_clock_mhz), _integer(r.throttle_reasons, 1 << 62),
             _integer(r.ecc_corrected, 1 << 62), _integer(r.ecc_uncorrected, 1 << 62), processes, occupancy, occupant)
        )  # fmt: skip
    policy = hook("policy_values")()
    prepared(_UPSERT, [policy["held_idle_percent"], *columns(rows, 2 + len(_READ_COLUMNS))])
    _mark_lost(losses)
    device_health.mark_degraded(_hardware_failures(readings))
    device_health.apply_occupancy(occupied)
    thermal.apply_readings([(row[0], row[1], row[4], row[9]) for row in rows], policy["thermal_threshold_celsius"])


def _hardware_failures(readings: Sequence[tuple[int, Reading]]) -> list[tuple[int, str, str, int]]:
    """Return (node, UUID, failure, seconds ago): the latest hardware Xid per device."""
    latest: dict[tuple[int, str], tuple[int, str]] = {}
    for node_id, reading in readings:
        for xid in reading.xids:
            if xid.code in xids.HARDWARE and 0 <= xid.seconds_ago < MAX_SECONDS_AGO:
                failure = (xid.seconds_ago, xids.sentence(xid.code))
                latest[node_id, reading.uuid] = min(failure, latest.get((node_id, reading.uuid), failure))
    return [(*device, note, ago) for device, (ago, note) in latest.items()]


def _text(value: str, length: int) -> str:
    """Return the text without the character that PostgreSQL cannot store, and no longer than its column."""
    return value.replace("\x00", "")[:length]


def _smallint(value: int | None) -> int | None:
    """Return the value, or None if it does not fit a smallint."""
    return value if value is not None and -1000 <= value <= 1000 else None


def _watts(value: float | None) -> float | None:
    """Return the value, or None if no device can have it: one such reading would spoil the means of its roll-ups."""
    return value if value is not None and 0 <= value <= MAX_WATTS else None


def _integer(value: float | None, maximum: int = 1 << 30) -> int | None:
    """Round the value, or return None if no device can have it."""
    return round(value) if value is not None and 0 <= value <= maximum else None


def _mark_lost(losses: Sequence[tuple[int, str, bool]]) -> None:
    rows = prepared(
        """UPDATE nodes_device d SET health = CASE WHEN t.gone THEN 'lost' ELSE 'ok' END, health_note = ''
             FROM unnest(%s::bigint[], %s::text[], %s::bool[]) AS t (node_id, uuid, gone)
            WHERE d.node_id = t.node_id AND d.uuid = t.uuid AND (d.health = 'lost') <> t.gone
              AND d.health IN ('ok', 'hot', 'dirty', 'foreign', 'lost') RETURNING d.node_id""",
        columns(losses, 3),
    )
    if rows:
        events.changed("nodes", {row["node_id"] for row in rows})
        wake.request_cycle()
