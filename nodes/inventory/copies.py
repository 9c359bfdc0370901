"""Refuse a machine that presents the credential of a node that another machine reports for, such as a copy of its disk.
Both would take the node's orders, and run each job twice. An id of the boot tells them apart.

Refuse also a machine that is two nodes: each would offer the same GPUs to jobs."""

import logging
from collections.abc import Sequence

from django.conf import settings

from gpusched.lib.db.locks import Lock, acquire_in_transaction
from gpusched.lib.db.sql import columns, prepared, query
from gpusched.protocol.agent_messages import Sync

logger = logging.getLogger(__name__)
# The reason of a closed WebSocket has at most 123 bytes.
REFUSAL = "another machine reports as this node; on a copied disk, remove the agent's nodes/NAME, and join with --name"
# A machine whose last message is older may be another one than before: it has booted since.
REPORTING_SECONDS, MISSED_HEARTBEATS = 15.0, 3
NEXT_STEP = (
    "on a copied disk, remove the folder nodes/NAME of the agent's directory, and join with --name;"
    " on the same machine, wait for some seconds after its reboot"
)
# A message of the future is from before the clock was set back.
_REPORTING = """
    SELECT t.id, t.boot_id FROM unnest(%s::bigint[], %s::text[]) AS t (id, boot_id) JOIN nodes_node n ON n.id = t.id
     WHERE n.boot_id NOT IN ('', t.boot_id)
       AND abs(extract(epoch FROM clock_timestamp() - n.last_seen_at)) < %s
"""
# Two agents on one machine: both report its boot and its GPUs. A node whose agent is silent is no hindrance. Of those
# that come back together, the first does.
_TWINS = """
    SELECT DISTINCT ON (n.id) n.id, o.name FROM nodes_node n
      JOIN nodes_node o ON o.boot_id = n.boot_id AND o.id <> n.id AND o.removed_at IS NULL{and_other}
     WHERE n.id = ANY(%(ids)s) AND n.boot_id <> '' AND NOT n.pretend AND NOT o.pretend AND EXISTS (
           SELECT 1 FROM nodes_device d JOIN nodes_device e ON e.uuid = d.uuid AND e.node_id = o.id
            WHERE d.node_id = n.id AND d.health <> 'lost' AND e.health <> 'lost')
     ORDER BY n.id, o.id
"""
_OF_ANY_STATE = _TWINS.format(and_other="")
_ONLINE = _TWINS.format(and_other=" AND (o.state = 'online' OR o.id = ANY(%(ids)s) AND o.id < n.id)")
TWIN_STEP = "stop one of the two agents of this machine, remove its node, and delete its directory"


def twins(node_ids: Sequence[int]) -> dict[int, str]:
    """Return why these nodes are refused, of those whose GPUs another online node of the same machine offers. Call it
    in the transaction that brings the others online."""
    ids = {"ids": list(node_ids)}
    if not query(_OF_ANY_STATE, ids):
        return {}
    acquire_in_transaction(Lock.TWINS)  # another transaction may bring the other node online at this moment
    rows = query(_ONLINE, ids)
    return {row["id"]: f"node '{row['name']}' of this machine offers the same GPUs" for row in rows}


def is_copy(node_id: int, boot_id: str) -> bool:
    """Return whether another machine reports for the node: messages came from another boot a moment ago. The same
    machine has to wait that long after a fast reboot."""
    return bool(_reporting_elsewhere([(node_id, boot_id)]))


def accepted(batch: Sequence[tuple[int, Sync]]) -> list[bool]:
    """Return of each (node id, message) whether it is from the machine that reports for the node."""
    first_boots: dict[int, str] = {}
    refused = _reporting_elsewhere([(node_id, sync.boot_id) for node_id, sync in batch])
    answers = []
    for node_id, sync in batch:
        is_refused = (node_id, sync.boot_id[:64]) in refused
        if not is_refused:
            is_refused = first_boots.setdefault(node_id, sync.boot_id) != sync.boot_id
        answers.append(not is_refused)
    return answers


def _reporting_elsewhere(boots: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    rows = [(node_id, boot_id[:64]) for node_id, boot_id in boots]
    env = settings.ENV
    seconds = min(env.node_lost_seconds, max(REPORTING_SECONDS, MISSED_HEARTBEATS * env.heartbeat_seconds))
    refused = prepared(_REPORTING, [*columns(rows, 2), seconds])
    if refused:
        logger.warning("refused other machines that report as these nodes: %s", sorted({row["id"] for row in refused}))
    return {(row["id"], row["boot_id"]) for row in refused}
