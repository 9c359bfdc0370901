"""Finds nodes that have gone silent and ends what ran on them (A37)."""

import logging

from django.conf import settings

from gpusched.lib import events
from gpusched.lib.sql import atomically, query
from gpusched.protocol.reasons import EndReason
from nodes import reports

logger = logging.getLogger(__name__)

# Silence counts only while agents could be heard without a break: after an outage of the control plane every node has
# been silent, and none is dead.
_SILENT = """
    UPDATE nodes_node n SET state = 'lost'
      FROM nodes_listenerlease l
     WHERE n.state IN ('online', 'joined') AND l.id = 1
       AND l.seen_at > clock_timestamp() - interval '3 seconds'
       AND l.since < clock_timestamp() - make_interval(secs => %(most)s)
       AND coalesce(n.last_seen_at, n.joined_at) < clock_timestamp() - make_interval(secs => %(most)s)
    RETURNING n.id, n.name
"""
_LEFT_BEHIND = """
    SELECT s.job_id, s.number, s.rank, s.node_id, coalesce(n.last_seen_at, clock_timestamp()) AS at
      FROM nodes_assignment s JOIN nodes_node n ON n.id = s.node_id
     WHERE s.node_id = ANY(%s) AND s.state <> 'ended'
"""


def lose_silent_nodes() -> list[int]:
    """online → lost for nodes not heard for GPUSCHED_NODE_LOST_SECONDS; their ranks end as node_lost, as of when the
    node was last heard. Gives the ids of the nodes."""
    lost = atomically(_lose)
    if lost:
        logger.warning("lost %d nodes: %s", len(lost), ", ".join(name for _, name in lost[:10]))
    return [node_id for node_id, _ in lost]


def _lose() -> list[tuple[int, str]]:
    rows = query(_SILENT, {"most": settings.ENV.node_lost_seconds})
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    ends = [
        reports.RankEnd((r["job_id"], r["number"], r["rank"]), r["node_id"], r["at"], EndReason.NODE_LOST)
        for r in query(_LEFT_BEHIND, [ids])
    ]
    reports.lock_jobs([end.key[0] for end in ends])
    changed = reports.end(ends)
    events.changed("nodes", ids)
    if changed:
        events.changed("jobs", changed)
    return [(row["id"], row["name"]) for row in rows]
