"""End ranks on nodes that have gone silent, on GPUs that were lost, and ranks that their agents never start."""

import logging

from django.conf import settings

from gpusched.json_log import job_fields
from gpusched.lib.bus import events
from gpusched.lib.db.sql import prepared, query, retry_atomic
from gpusched.protocol.reasons import EndReason
from jobs.lifecycle import states
from nodes.ranks import rank_end

logger = logging.getLogger(__name__)

# Silence counts only while the server could receive messages without a break: after an outage of the control plane
# every node has been silent, and none is dead. A message of the future is from before the clock was set back; after
# that, the lease is renewed before silence counts.
_SILENT = """
    UPDATE nodes_node n SET state = 'lost'
      FROM nodes_listenerlease l
     WHERE n.state IN ('online', 'joined') AND n.removed_at IS NULL AND l.id = 1
       AND l.seen_at BETWEEN clock_timestamp() - interval '3 seconds'
                         AND clock_timestamp() + make_interval(secs => %(most)s / 2)
       AND l.since < clock_timestamp() - make_interval(secs => %(most)s)
       AND abs(extract(epoch FROM clock_timestamp() - coalesce(n.last_seen_at, n.joined_at))) > %(most)s
    RETURNING n.id, n.name
"""
_UNENDED = """
    SELECT s.job_id, s.number, s.rank, s.node_id,
           greatest(least(n.last_seen_at, clock_timestamp()), a.scheduled_at) AS at
      FROM nodes_assignment s JOIN nodes_node n ON n.id = s.node_id JOIN jobs_attempts a ON a.id = s.attempt_id
     WHERE s.node_id = ANY(%s) AND s.state <> 'ended'
"""


def mark_silent_nodes_lost() -> list[int]:
    """Mark nodes lost that have been silent for GPUSCHED_NODE_LOST_SECONDS. Their ranks end as node_lost, at the time
    of the node's last message, or of their placement if that was later. Return the ids of the nodes."""
    lost = retry_atomic(_mark_lost)
    if lost:
        logger.warning("lost %d nodes: %s", len(lost), ", ".join(name for _, name in lost[:10]))
    return [node_id for node_id, _ in lost]


def _mark_lost() -> list[tuple[int, str]]:
    rows = prepared(_SILENT, {"most": settings.ENV.node_lost_seconds})
    if not rows:
        return []
    ids = [row["id"] for row in rows]
    ends = [
        rank_end.RankEnd((r["job_id"], r["number"], r["rank"]), r["node_id"], r["at"], EndReason.NODE_LOST)
        for r in query(_UNENDED, [ids])
    ]
    states.lock_jobs([end.key[0] for end in ends])
    changed = rank_end.end_ranks(ends)
    events.changed("nodes", ids)
    events.changed("jobs", changed)
    return [(row["id"], row["name"]) for row in rows]


# A rank that fails is reported by its agent (nodes/ranks/fault_attribution.py), but a process may also wait forever for
# a lost GPU.
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
    """Stop jobs whose GPU has been lost for GPUSCHED_LOST_GPU_SECONDS. They end as node_fault, which is not counted as
    their failure. Return their ids."""
    return retry_atomic(_stop_on_lost_devices) if prepared(_ON_LOST_DEVICES, [settings.ENV.lost_gpu_seconds]) else []


def _stop_on_lost_devices() -> list[int]:
    rows = query(_ON_LOST_DEVICES, [settings.ENV.lost_gpu_seconds])
    states.lock_jobs([row["job_id"] for row in rows])
    stopped: list[int] = []
    for row in rows:
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


# A node needs a moment to report that it never started a rank; after this time its rank ends without that report.
STOP_SECONDS = 60.0
# Counts only while the server could reach agents without a break: orders and reports use the same connection.
_SINCE = "greatest({since}, (SELECT l.since FROM nodes_listenerlease l WHERE l.id = 1)) < clock_timestamp()"
# A node may send messages each second and still start nothing: its disk is full, its launcher hangs, or it takes the
# order for an older one. Without this, such a job would never end.
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
    """Stop jobs whose node has not started them for GPUSCHED_START_SECONDS, as a node fault. End ranks that never
    started and whose stop order their node ignores. Return the ids of the jobs."""
    seconds = settings.ENV.start_seconds
    if not query(_UNSTARTED, [seconds]) and not query(_IGNORED, [STOP_SECONDS]):
        return []
    return retry_atomic(lambda: _stop_unstarted(seconds) + _end_silent())


def _stop_unstarted(seconds: float) -> list[int]:
    states.lock_jobs([row["job_id"] for row in query(_UNSTARTED, [seconds])])
    stopped: list[int] = []
    for row in query(_UNSTARTED, [seconds]):  # again, now that they are locked
        evidence = {"node": row["node"], "detail": f"it was not started there within {seconds:g} s"}
        stopped += states.stop([row["job_id"]], EndReason.NODE_FAULT, evidence, "scheduler")
        logger.warning("job %d was not started by node %s", row["job_id"], row["node"], extra={"job_id": row["job_id"]})
    events.changed("jobs", stopped)
    return stopped


def _end_silent() -> list[int]:
    states.lock_jobs([row["job_id"] for row in query(_IGNORED, [STOP_SECONDS])])
    ignored = query(_IGNORED, [STOP_SECONDS])
    if ignored:
        concerned = job_fields(row["job_id"] for row in ignored)
        logger.warning(
            "ended %d ranks that never started: their nodes ignore the stop order", len(ignored), extra=concerned
        )
        rank_end.end_as_node_fault([((r["job_id"], r["number"], r["rank"]), r["node_id"], r["now"]) for r in ignored])
    return [row["job_id"] for row in ignored]
