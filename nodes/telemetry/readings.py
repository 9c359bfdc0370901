"""Signs of life, hardware facts and readings of nodes, written for many nodes at once."""

from collections.abc import Sequence
from typing import Any

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import as_json, columns, execute, prepared, query
from gpusched.lib.hooks import hook
from gpusched.protocol import xids
from gpusched.protocol.agent_messages import Hint, Isolation, NodeFacts, Reading
from gpusched.protocol.states import NodeState
from nodes.health import device_health, thermal

# Agents tell of an Xid for a minute; what claims to be older is not believed.
MAX_SECONDS_AGO = 3600
_MAX_HINTS = 20
_SEEN = """
    WITH old AS (SELECT id, state FROM nodes_node WHERE id = ANY(%s) AND removed_at IS NULL ORDER BY id FOR UPDATE)
    UPDATE nodes_node n SET last_seen_at = clock_timestamp(), boot_id = t.boot_id, clock_off_seconds = t.off,
           state = CASE WHEN t.is_clean THEN 'online' ELSE n.state END
      FROM old, unnest(%s::bigint[], %s::text[], %s::bool[], %s::float8[]) AS t (id, boot_id, is_clean, off)
     WHERE n.id = old.id AND n.id = t.id
    RETURNING n.id, old.state AS old_state, n.state
"""


def record_heartbeats(nodes: Sequence[tuple[int, str, bool, float | None]]) -> set[int]:
    """(node, boot id, is_clean, seconds that its clock is ahead): the nodes are alive. One on which processes of ended
    attempts still live (not clean) does not come back online before they are gone, lest their devices be given to
    others. Return the nodes that exist: not those that were removed."""
    rows = prepared(_SEEN, [[node[0] for node in nodes], *columns(nodes, 4)])
    if back := [row["id"] for row in rows if row["old_state"] != row["state"]]:
        events.changed("nodes", back)
        wake.request_cycle()
    return {row["id"] for row in rows}


def lost_nodes() -> list[int]:
    """Nodes that are lost at present."""
    return [
        row["id"]
        for row in query("SELECT id FROM nodes_node WHERE state = %s AND removed_at IS NULL", [NodeState.LOST])
    ]


def store_facts(node_id: int, facts: NodeFacts) -> None:
    """Takes over what an agent says of its machine. A device that it no longer names is lost; one that is named again
    is back. What the scheduler holds stays as it is."""
    if not _learn_machine(node_id, facts):
        return  # it was removed meanwhile
    _learn_devices(node_id, facts)
    events.changed("nodes", [node_id])
    wake.request_cycle()


def _learn_machine(node_id: int, facts: NodeFacts) -> int:
    return execute(
        "UPDATE nodes_node SET hostname = %s, boot_id = %s, agent_version = %s, cpu_cores = %s, memory_mb = %s,"
        " labels = %s::jsonb, driver_version = %s, runtimes = %s::jsonb, isolation = %s::jsonb,"
        " hints = %s::jsonb, pretend = %s WHERE id = %s AND removed_at IS NULL",
        [
            facts.hostname[:253],
            facts.boot_id[:64],
            facts.agent_version[:30],
            facts.cpu_cores,
            facts.memory_mb,
            as_json(facts.labels),
            (facts.driver_version or "")[:50],
            as_json({name[:30]: version[:50] for name, version in facts.runtimes.items()}),
            as_json(_isolation(facts.isolation)),
            as_json([_bounded(hint) for hint in facts.hints[:_MAX_HINTS]]),
            facts.pretend,
            node_id,
        ],
    )


def _learn_devices(node_id: int, facts: NodeFacts) -> None:
    rows = [
        (node_id, d.uuid[:80], d.index, d.model[:200], d.memory_mb, (d.pci_bus_id or "")[:32], d.numa_node,
         d.nvlink_island, d.mig_parent[:80] if d.mig_parent else None, d.mig_slices)
        for d in {d.uuid[:80]: d for d in facts.devices}.values()  # two of one name would refuse all
    ]  # fmt: skip
    execute(
        """INSERT INTO nodes_device (node_id, uuid, index, model, memory_mb, pci_bus_id, numa_node, nvlink_island,
                                     mig_parent, mig_slices, health, held_whole, held_mb)
           SELECT t.*, 'ok', 0, 0
             FROM unnest(%s::bigint[], %s::text[], %s::int[], %s::text[], %s::int[], %s::text[], %s::int[], %s::int[],
                         %s::text[], %s::int[]) AS t
           ON CONFLICT (node_id, uuid) DO UPDATE
              SET index = excluded.index, model = excluded.model, memory_mb = excluded.memory_mb,
                  pci_bus_id = excluded.pci_bus_id, numa_node = excluded.numa_node,
                  nvlink_island = excluded.nvlink_island, mig_parent = excluded.mig_parent,
                  mig_slices = excluded.mig_slices,
                  health = CASE WHEN nodes_device.health = 'lost' THEN 'ok' ELSE nodes_device.health END""",
        columns(rows, 10),
    )
    execute(
        "UPDATE nodes_device SET health = 'lost', health_note = '' WHERE node_id = %s AND uuid <> ALL(%s)"
        " AND health NOT IN ('lost', 'quarantined', 'degraded')",
        [node_id, [device.uuid[:80] for device in facts.devices]],
    )


def _isolation(told: Isolation | None) -> dict[str, Any]:
    """As it is kept: in words of bounded length. Empty of an agent that does not tell."""
    if told is None:
        return {}
    limits = [limit[:30] for limit in told.limits[:10]]
    return {"cgroup": told.cgroup, "limits": limits, "users": told.users[:30], "why": told.why[:200]}


def _bounded(hint: Hint) -> dict[str, str]:
    level = "fail" if hint.level == "fail" else "warn"
    return {"check": hint.check[:30], "level": level, "says": hint.says[:300], "next_step": hint.next_step[:300]}


# The columns of a reading as they are written, apart from the moments.
_READ_COLUMNS = {
    "utilisation_percent": "int", "memory_used_mb": "int", "temperature_celsius": "int", "power_watts": "float8",
    "power_limit_watts": "int", "sm_clock_mhz": "int", "memory_clock_mhz": "int", "throttle_reasons": "bigint",
    "ecc_corrected": "bigint", "ecc_uncorrected": "bigint", "process_count": "int", "occupancy": "text",
    "occupant": "text",
}  # fmt: skip
_READ = """
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


def store_readings(readings: Sequence[tuple[int, Reading]]) -> None:
    """(node, reading) pairs become the latest readings; what the driver calls lost, or has on it who should not be
    there, is no longer offered."""
    rows: list[tuple[Any, ...]] = []
    gone: list[tuple[int, str, bool]] = []
    occupied: list[device_health.Told] = []
    for node_id, r in {(node_id, r.uuid): (node_id, r) for node_id, r in readings}.values():
        gone.append((node_id, r.uuid, r.lost))
        processes = None if r.process_ids is None else len(r.process_ids)
        # A word that only a newer agent knows is not known here.
        occupancy = "lost" if r.lost else r.occupancy if r.occupancy in device_health.OCCUPANCIES else None
        occupant = r.occupant.replace("\x00", "")[:200] if occupancy in ("dirty", "foreign") else ""
        if occupancy is not None and not r.lost:
            occupied.append((node_id, r.uuid, occupancy, occupant))
        rows.append(
            (node_id, r.uuid, _small(r.utilisation_percent), _whole(r.memory_used_mb), _small(r.temperature_celsius),
             r.power_watts, _whole(r.power_limit_watts), _whole(r.sm_clock_mhz), _whole(r.memory_clock_mhz),
             _whole(r.throttle_reasons, 1 << 62), _whole(r.ecc_corrected, 1 << 62), _whole(r.ecc_uncorrected, 1 << 62),
             processes, occupancy, occupant)
        )  # fmt: skip
    policy = hook("policy_values")()
    prepared(_READ, [policy["held_idle_percent"], *columns(rows, 2 + len(_READ_COLUMNS))])
    _mark_lost(gone)
    device_health.mark_degraded(_hardware_failures(readings))
    device_health.apply_occupancy(occupied)
    thermal.apply_readings([(row[0], row[1], row[4], row[9]) for row in rows], policy["thermal_threshold_celsius"])


def _hardware_failures(readings: Sequence[tuple[int, Reading]]) -> list[tuple[int, str, str, int]]:
    """The latest per device."""
    latest: dict[tuple[int, str], tuple[int, str]] = {}
    for node_id, reading in readings:
        for xid in reading.xids:
            if xid.code in xids.HARDWARE and 0 <= xid.seconds_ago < MAX_SECONDS_AGO:
                told = (xid.seconds_ago, xids.sentence(xid.code))
                latest[node_id, reading.uuid] = min(told, latest.get((node_id, reading.uuid), told))
    return [(*device, note, ago) for device, (ago, note) in latest.items()]


def _small(value: int | None) -> int | None:
    """What does not fit a smallint is no reading."""
    return value if value is not None and -1000 <= value <= 1000 else None


def _whole(value: float | None, most: int = 1 << 30) -> int | None:
    """In whole numbers; what no device could mean is no reading."""
    return round(value) if value is not None and 0 <= value <= most else None


def _mark_lost(told: Sequence[tuple[int, str, bool]]) -> None:
    rows = prepared(
        """UPDATE nodes_device d SET health = CASE WHEN t.gone THEN 'lost' ELSE 'ok' END, health_note = ''
             FROM unnest(%s::bigint[], %s::text[], %s::bool[]) AS t (node_id, uuid, gone)
            WHERE d.node_id = t.node_id AND d.uuid = t.uuid AND (d.health = 'lost') <> t.gone
              AND d.health IN ('ok', 'hot', 'dirty', 'foreign', 'lost') RETURNING d.node_id""",
        columns(told, 3),
    )
    if rows:
        events.changed("nodes", {row["node_id"] for row in rows})
        wake.request_cycle()
