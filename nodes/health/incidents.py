"""Read the history of incidents, which triggers write at each change (nodes/models/triggers.py)."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from gpusched.lib.audit import log
from gpusched.lib.db.sql import execute, query
from gpusched.lib.times import rfc3339
from nodes.redaction import AUTO_CORDON_NOTE, CLOSED_KINDS

_LATEST = """
    SELECT i.id, n.name AS node, d.index AS gpu, d.uuid, i.device_id, i.kind, i.cause, i.since, i.until
      FROM nodes_incident i JOIN nodes_node n ON n.id = i.node_id LEFT JOIN nodes_device d ON d.id = i.device_id
     WHERE (NOT %(is_open)s OR i.until IS NULL)
       AND (%(before)s::bigint IS NULL
            OR (i.since, i.id) < (SELECT one.since, one.id FROM nodes_incident one WHERE one.id = %(before)s))
     ORDER BY i.since DESC, i.id DESC LIMIT %(limit)s
"""
_OF_NODES = """
    SELECT n.name AS node, i.id, i.device_id, d.index AS gpu, i.kind, i.cause, i.since, i.until
      FROM nodes_node n CROSS JOIN LATERAL (SELECT * FROM nodes_incident WHERE node_id = n.id
            ORDER BY until IS NOT NULL, since DESC, id DESC LIMIT %s) i
      LEFT JOIN nodes_device d ON d.id = i.device_id WHERE n.name = ANY(%s) AND n.removed_at IS NULL
     ORDER BY n.name, i.until IS NOT NULL, i.since DESC, i.id DESC
"""
MAX_OF_A_NODE = 50
# The actor who closed a node or wrote its present note; none if the system closed it. The audit log has the changed
# fields of each write: without `intent` only the note changed.
_CLOSED_BY = """
    SELECT DISTINCT ON (i.id) i.id, e.actor FROM nodes_incident i JOIN nodes_node n ON n.id = i.node_id
      JOIN lib_audit_entries e ON e.action = 'node.intent' AND e.subject = left('node ' || n.name, %s)
                           AND coalesce(e.after->>'intent', i.kind) = i.kind AND e.after <> '{}'
                           AND e.at <= coalesce(i.until, 'infinity')
     WHERE i.id = ANY(%s) AND NOT starts_with(i.cause, %s) ORDER BY i.id, e.id DESC
"""


def of_nodes(names: Collection[str]) -> dict[str, list[dict[str, Any]]]:
    """Return open incidents, then the latest closed ones, by node: at most MAX_OF_A_NODE each, with datetimes."""
    incidents: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for row in query(_OF_NODES, [MAX_OF_A_NODE, sorted(names)]):
        incidents[row.pop("node")].append(row)
    return incidents


def with_closers(incidents: Collection[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the incidents, each with `by`: the actor who closed the node or wrote its note since. Empty if the system
    closed it, and for other kinds."""
    closed = [row["id"] for row in incidents if row["kind"] in CLOSED_KINDS]
    rows = query(_CLOSED_BY, [log.MAX_CHARACTERS, closed, AUTO_CORDON_NOTE]) if closed else []
    by = {row["id"]: row["actor"] for row in rows}
    return [{**row, "by": by.get(row["id"], "")} for row in incidents]


def latest(limit: int, older_than: int | None = None, *, is_open: bool = False) -> list[dict[str, Any]]:
    """Return incidents, newest first. `older_than`: only those before the incident with this id. `is_open`: only open
    ones."""
    return [
        {**row, "since": rfc3339(row["since"]), "until": rfc3339(row["until"])}
        for row in query(_LATEST, {"is_open": is_open, "before": older_than, "limit": limit})
    ]


_RECORD_ONCE = """
    INSERT INTO nodes_incident (node_id, device_id, kind, cause, since, until)
    SELECT %(node)s, %(device)s, %(kind)s, %(cause)s, clock_timestamp(), clock_timestamp()
     WHERE NOT EXISTS (SELECT 1 FROM nodes_incident i WHERE i.device_id = %(device)s AND i.kind = %(kind)s
                          AND i.since >= %(since)s AND strpos(i.cause, %(part)s) > 0)
"""


def record_once(node_id: int, device_id: int, kind: str, cause: str, *, part: str, since: datetime) -> int:
    """Record a moment in the history of a device. Return 0 if one of this kind whose cause has `part` is there
    already since that time."""
    values = {"node": node_id, "device": device_id, "kind": kind, "cause": cause, "part": part, "since": since}
    return execute(_RECORD_ONCE, values)
