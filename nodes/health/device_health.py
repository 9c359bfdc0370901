"""Take devices out of service and back: by the occupancy that agents report, by hardware faults, and by admins.

A device that an admin quarantined, or whose hardware failed, stays out of service until an admin clears it, whatever
its readings show. Running ranks are left alone, and nothing here releases an allocated device."""

from collections.abc import Sequence

from gpusched.lib.api.problems import Problem, not_found, still_there
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import columns, prepared, query
from nodes.health.thermal import SLOWED_NOTE

OCCUPANCIES = frozenset({"clear", "dirty", "foreign"})
Observation = tuple[int, str, str, str]

# Most readings change nothing: skip devices that were clear and still are. Locked in the order of ids.
_OCCUPY = f"""
    WITH old AS (
        SELECT d.id, d.health, t.occupancy, t.occupant
          FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[]) AS t (node_id, uuid, occupancy, occupant)
          JOIN nodes_device d ON d.node_id = t.node_id AND d.uuid = t.uuid
         WHERE d.health IN ('dirty', 'foreign') AND (d.health, d.health_note) <> (t.occupancy, t.occupant)
            OR d.health IN ('ok', 'hot') AND t.occupancy <> 'clear'
         ORDER BY d.id FOR NO KEY UPDATE OF d)
    UPDATE nodes_device d
       SET health = CASE WHEN old.occupancy <> 'clear' THEN old.occupancy WHEN d.is_slowed THEN 'hot' ELSE 'ok' END,
           health_note = CASE WHEN old.occupancy = 'clear' AND d.is_slowed THEN '{SLOWED_NOTE}' ELSE old.occupant END,
           cool_since = NULL
      FROM old WHERE d.id = old.id
    RETURNING d.node_id, d.health <> old.health AS is_other
"""


def apply_occupancy(observations: Sequence[Observation]) -> None:
    """Apply (node, UUID, occupancy, occupant). Write and announce only changes."""
    if not observations:
        return
    changed = prepared(_OCCUPY, columns(observations, 4))
    events.changed("nodes", {row["node_id"] for row in changed})
    if any(row["is_other"] for row in changed):
        wake.request_cycle()


_MARK_DIRTY = """
    UPDATE nodes_device d SET health = 'dirty', health_note = t.note, cool_since = NULL
      FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS t (id, uuid, note) JOIN nodes_assignment s ON s.id = t.id
     WHERE d.node_id = s.node_id AND d.uuid = t.uuid AND s.device_ids @> to_jsonb(d.id) AND d.health IN ('ok', 'hot')
    RETURNING d.node_id
"""


def mark_dirty(leftovers: Sequence[tuple[int, str, str]]) -> None:
    """Mark devices dirty, as (assignment, UUID, processes), that were not free after their rank ended. The next reading
    that shows them clear reverts it."""
    rows = [(id, uuid, note.replace("\x00", "")[:200]) for id, uuid, note in leftovers if "\x00" not in uuid]
    if rows and (changed := prepared(_MARK_DIRTY, columns(rows, 3))):
        events.changed("nodes", {row["node_id"] for row in changed})


# Agents repeat an Xid for a minute: one from before an admin cleared the device does not count again.
_DEGRADE = """
    WITH old AS (
        SELECT d.id, t.note FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::int[]) AS t (node_id, uuid, note, ago)
          JOIN nodes_device d ON d.node_id = t.node_id AND d.uuid = t.uuid
         WHERE d.health NOT IN ('degraded', 'quarantined')
           AND NOT EXISTS (SELECT 1 FROM nodes_incident i WHERE i.device_id = d.id AND i.kind = 'degraded'
                              AND i.until >= clock_timestamp() - make_interval(secs => t.ago))
         ORDER BY d.id FOR NO KEY UPDATE OF d)
    UPDATE nodes_device d SET health = 'degraded', health_note = old.note, cool_since = NULL
      FROM old WHERE d.id = old.id RETURNING d.node_id
"""


def mark_degraded(failures: Sequence[tuple[int, str, str, int]]) -> None:
    """Mark devices degraded, as (node, UUID, failure, seconds ago), at most one entry per device. They get no new jobs
    until an admin clears them."""
    changed = prepared(_DEGRADE, columns(failures, 4)) if failures else []
    if changed:
        events.changed("nodes", {row["node_id"] for row in changed})
        wake.request_cycle()


# Their agents have tried to end the processes there, and failed.
_QUARANTINE_STALE = """
    UPDATE nodes_device d SET health = 'quarantined', health_note = left(%s || d.health_note, 200)
      FROM nodes_incident i
     WHERE i.device_id = d.id AND i.until IS NULL AND i.kind = 'dirty' AND d.health = 'dirty'
       AND i.since < clock_timestamp() - make_interval(secs => %s)
    RETURNING d.node_id
"""


def quarantine_stale_dirty(minutes: float) -> int:
    """Quarantine devices that have been dirty for `minutes` (0: none) until an admin clears them. Return how many."""
    if not minutes:
        return 0
    changed = query(_QUARANTINE_STALE, [f"dirty for {minutes:g} min: ", minutes * 60])
    events.changed("nodes", {row["node_id"] for row in changed})
    return len(changed)


_QUARANTINE = "UPDATE nodes_device SET health = 'quarantined', health_note = %s WHERE id = %s RETURNING node_id"
# Readings made while it was out of service count at once: no rank must start there before the next reading. A lost
# device is back with the first message of its agent that has it, and not before.
_CLEAR = f"""
    UPDATE nodes_device d
       SET health = t.health, cool_since = NULL,
           health_note = CASE WHEN t.health IN ('dirty', 'foreign') THEN t.occupant
                              WHEN t.health = 'hot' THEN '{SLOWED_NOTE}' ELSE '' END
      FROM (SELECT d.id, r.occupant,
                   CASE WHEN d.health = 'lost' OR r.occupancy = 'lost'
                             OR r.read_at < n.last_seen_at - interval '30 seconds' THEN 'lost'
                        WHEN r.occupancy IN ('dirty', 'foreign') THEN r.occupancy
                        WHEN d.is_slowed THEN 'hot' ELSE 'ok' END AS health
              FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id
              LEFT JOIN nodes_reading r ON r.device_id = d.id
             WHERE d.id = %s AND d.health NOT IN ('ok', 'hot')) t
     WHERE d.id = t.id RETURNING d.node_id, d.health
"""


def quarantine(device_id: int, note: str, actor: str) -> str:
    """Quarantine a device until it is cleared; running jobs may end. Return a message. 404 for an unknown id."""
    text = f"{note} (by {actor})" if note else f"by {actor}"
    name, previous = _name(device_id), _health(device_id)
    _announce(still_there(query(_QUARANTINE, [text[:200], device_id]), name)["node_id"])
    log.record("gpu.quarantine", name, previous, _health(device_id))
    return f"{name} takes no new jobs until it is cleared; what runs there may end"


def clear(device_id: int) -> str:
    """Restore the health that a device's readings show. Return a message. 404 for an unknown id; 409 if it is in
    service."""
    name, previous = _name(device_id), _health(device_id)
    rows = query(_CLEAR, [device_id])
    if not rows:
        raise Problem(409, "wrong_state", f"{name} is in service", next_step="nothing to do")
    _announce(rows[0]["node_id"])
    health = rows[0]["health"]
    log.record("gpu.clear", name, previous, _health(device_id))
    return f"{name} takes jobs again" if health in ("ok", "hot") else f"{name} is cleared, but it is {health}"


def _name(device_id: int) -> str:
    rows = query(
        "SELECT n.name, d.index FROM nodes_device d JOIN nodes_node n ON n.id = d.node_id WHERE d.id = %s", [device_id]
    )
    if not rows:
        raise not_found(f"GPU {device_id}")
    return f"GPU {rows[0]['index']} of {rows[0]['name']}"


def _health(device_id: int) -> dict[str, str]:
    """Return the health for the audit log, and lock the row until the transaction ends. 404 for a device that was
    retired at this moment."""
    rows = query("SELECT health, health_note AS note FROM nodes_device WHERE id = %s FOR UPDATE", [device_id])
    if not rows:
        raise not_found(f"GPU {device_id}")
    return rows[0]


def _announce(node_id: int) -> None:
    events.changed("nodes", [node_id])
    wake.request_cycle()
