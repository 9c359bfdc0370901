"""Finds nodes that have gone silent, GPUs that vanished and orders that nobody carries out, and ends what was there."""

import logging

from django.conf import settings

from gpusched.json_log import job_fields
from gpusched.lib.bus import events
from gpusched.lib.db.sql import query, retry_atomic
from gpusched.protocol.reasons import EndReason
from jobs.lifecycle import states
from nodes.ranks import rank_end

logger = logging.getLogger(__name__)

# Silence counts only while agents could be heard without a break: after an outage of the control plane every node has
# been silent, and none is dead.
_SILENT = """
    UPDATE nodes_node n SET state = 'lost'
      FROM nodes_listenerlease l
     WHERE n.state IN ('online', 'joined') AND n.removed_at IS NULL AND l.id = 1
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


def mark_silent_nodes_lost() -> list[int]:
    """online → lost for nodes not heard for GPUSCHED_NODE_LOST_SECONDS; their ranks end as node_lost, as of when the
    node was last heard. Gives the ids of the nodes."""
    lost = retry_atomic(_lose)
    if lost:
        logger.warning("lost %d nodes: %s", len(lost), ", ".join(name for _, name in lost[:10]))
    return [node_id for node_id, _ in lost]


def _lose() -> list[tuple[int, str]]:
    rows = query(_SILENT, {"most": settings.ENV.node_lost_seconds})
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    ends = [
        rank_end.RankEnd((r["job_id"], r["number"], r["rank"]), r["node_id"], r["at"], EndReason.NODE_LOST)
        for r in query(_LEFT_BEHIND, [ids])
    ]
    states.lock_jobs([end.key[0] for end in ends])
    changed = rank_end.end(ends)
    events.changed("nodes", ids)
    if changed:
        events.changed("jobs", changed)
    return [(row["id"], row["name"]) for row in rows]


# The agent reports why a rank failed (nodes/ranks/fault_attribution.py). A process may also wait for ever for a GPU
# that is gone.
_ON_LOST_DEVICES = """
    SELECT DISTINCT ON (s.job_id) s.job_id, n.name AS node, 'GPU ' || d.index || ' '
           || CASE WHEN i.kind = 'degraded' THEN 'failed: ' || d.health_note ELSE 'was lost' END AS detail
      FROM nodes_incident i JOIN nodes_device d ON d.id = i.device_id AND d.health = i.kind
      JOIN nodes_node n ON n.id = d.node_id AND n.state = 'online'
      JOIN nodes_allocation a ON a.device_id = d.id JOIN nodes_assignment s ON s.id = a.assignment_id
      JOIN jobs_all j ON j.id = s.job_id AND j.attempt = s.number AND j.state IN ('scheduled', 'running')
      LEFT JOIN nodes_reading r ON r.device_id = d.id
     WHERE i.until IS NULL AND i.since < clock_timestamp() - make_interval(secs => %s)
       AND (i.kind = 'lost' OR i.kind = 'degraded' AND starts_with(d.health_note, 'Xid 79:')
            OR i.kind IN ('degraded', 'quarantined') AND r.occupancy = 'lost')
     ORDER BY s.job_id, d.index
"""


def stop_on_lost_devices() -> list[int]:
    """Has jobs stopped whose GPU has been gone for GPUSCHED_LOST_GPU_SECONDS; they end as node_fault, which is no
    failure of theirs. Gives their ids."""
    return retry_atomic(_stop_on_lost_devices) if query(_ON_LOST_DEVICES, [settings.ENV.lost_gpu_seconds]) else []


def _stop_on_lost_devices() -> list[int]:
    found = query(_ON_LOST_DEVICES, [settings.ENV.lost_gpu_seconds])
    states.lock_jobs([row["job_id"] for row in found])
    stopped: list[int] = []
    for row in found:
        evidence = {"node": row["node"], "detail": row["detail"]}
        stopped += states.stop([row["job_id"]], EndReason.NODE_FAULT, evidence, "scheduler")
        logger.warning(
            "job %d is stopped: %s of node %s",
            row["job_id"],
            row["detail"],
            row["node"],
            extra={"job_id": row["job_id"]},
        )
    events.changed("jobs", stopped)
    return stopped


# A node may be heard each second and still start nothing: its disk is full, its launcher hangs, or it takes the order
# for one that it had before. Nobody else would ever end such a job.
# To say that it never started something, a node needs a moment. One that says nothing is not waited for any longer.
STOP_SECONDS = 60.0
# Only while agents could be heard without a break too: they get their orders by the same way.
_SINCE = "greatest({since}, (SELECT l.since FROM nodes_listenerlease l WHERE l.id = 1)) < clock_timestamp()"
_UNSTARTED = f"""
    SELECT DISTINCT ON (s.job_id) s.job_id, n.name AS node
      FROM nodes_assignment s JOIN jobs_attempts a ON a.id = s.attempt_id
      JOIN nodes_node n ON n.id = s.node_id AND n.state = 'online'
      JOIN jobs_all j ON j.id = s.job_id AND j.attempt = s.number AND j.state IN ('scheduled', 'running')
     WHERE s.state = 'assigned' AND {_SINCE.format(since="a.scheduled_at")} - make_interval(secs => %s)
     ORDER BY s.job_id, s.rank
"""
_IGNORED = f"""
    SELECT s.job_id, s.number, s.rank, s.node_id, clock_timestamp() AS now
      FROM nodes_assignment s JOIN nodes_node n ON n.id = s.node_id AND n.state = 'online'
      JOIN jobs_all j ON j.id = s.job_id
     WHERE s.state = 'assigned' AND (j.state = 'stopping' OR j.attempt <> s.number)
       AND {_SINCE.format(since="j.reason_since")} - make_interval(secs => %s)
     ORDER BY s.job_id, s.rank
"""


def end_unstarted() -> list[int]:
    """Has jobs stopped that were not started for GPUSCHED_START_SECONDS, as a fault of the node, and ends ranks that
    were never started and whose stop their node ignores. Gives the ids of the jobs."""
    seconds = settings.ENV.start_seconds
    if not query(_UNSTARTED, [seconds]) and not query(_IGNORED, [STOP_SECONDS]):
        return []
    return retry_atomic(lambda: _stop_unstarted(seconds) + _end_silent())


def _stop_unstarted(seconds: float) -> list[int]:
    states.lock_jobs([row["job_id"] for row in query(_UNSTARTED, [seconds])])
    stopped: list[int] = []
    for row in query(_UNSTARTED, [seconds]):  # as it is now that they are locked
        evidence = {"node": row["node"], "detail": f"it was not started there within {seconds:g} s"}
        stopped += states.stop([row["job_id"]], EndReason.NODE_FAULT, evidence, "scheduler")
        logger.warning("job %d was not started by node %s", row["job_id"], row["node"], extra={"job_id": row["job_id"]})
    if stopped:
        events.changed("jobs", stopped)
    return stopped


def _end_silent() -> list[int]:
    states.lock_jobs([row["job_id"] for row in query(_IGNORED, [STOP_SECONDS])])
    gone = query(_IGNORED, [STOP_SECONDS])
    if gone:
        concerned = job_fields(row["job_id"] for row in gone)
        logger.warning(
            "%d ranks that never started are given up: their nodes say nothing of them", len(gone), extra=concerned
        )
        rank_end.end_as_node_fault([((r["job_id"], r["number"], r["rank"]), r["node_id"], r["now"]) for r in gone])
    return [row["job_id"] for row in gone]
