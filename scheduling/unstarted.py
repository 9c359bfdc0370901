"""Finds ranks that their node was told to run, and has neither started nor ended, and takes the job away from it.

A node may be heard each second and still start nothing: its disk is full, its launcher hangs, or it takes the order for
one that it had before. Nobody else would ever end such a job."""

import logging

from django.conf import settings

from gpusched.lib import events
from gpusched.lib.sql import atomically, query
from gpusched.protocol.reasons import EndReason
from jobs import transitions
from nodes import reports

logger = logging.getLogger(__name__)
# To say that it never started something, a node needs a moment. One that says nothing is not waited for any longer.
STOP_SECONDS = 60.0

# Only while agents could be heard without a break (scheduling/sweep.py), since they get their orders by the same way.
_SINCE = "greatest({since}, (SELECT l.since FROM nodes_listenerlease l WHERE l.id = 1)) < clock_timestamp()"
_UNSTARTED = f"""
    SELECT DISTINCT ON (s.job_id) s.job_id, n.name AS node
      FROM nodes_assignment s JOIN jobs_attempt a ON a.id = s.attempt_id
      JOIN nodes_node n ON n.id = s.node_id AND n.state = 'online'
      JOIN jobs_job j ON j.id = s.job_id AND j.attempt = s.number AND j.state IN ('scheduled', 'running')
     WHERE s.state = 'assigned' AND {_SINCE.format(since="a.scheduled_at")} - make_interval(secs => %s)
     ORDER BY s.job_id, s.rank
"""
_SILENT = f"""
    SELECT s.job_id, s.number, s.rank, s.node_id, clock_timestamp() AS now
      FROM nodes_assignment s JOIN nodes_node n ON n.id = s.node_id AND n.state = 'online'
      JOIN jobs_job j ON j.id = s.job_id
     WHERE s.state = 'assigned' AND (j.state = 'stopping' OR j.attempt <> s.number)
       AND {_SINCE.format(since="j.reason_since")} - make_interval(secs => %s)
     ORDER BY s.job_id, s.rank
"""


def take_back() -> list[int]:
    """Has jobs stopped that were not started for GPUSCHED_START_SECONDS, as a fault of the node, and ends ranks that
    were never started and whose stop their node ignores. Gives the ids of the jobs."""
    seconds = settings.ENV.start_seconds
    if not query(_UNSTARTED, [seconds]) and not query(_SILENT, [STOP_SECONDS]):
        return []
    return atomically(lambda: _stop(seconds) + _end())


def _stop(seconds: float) -> list[int]:
    reports.lock_jobs([row["job_id"] for row in query(_UNSTARTED, [seconds])])
    stopped: list[int] = []
    for row in query(_UNSTARTED, [seconds]):  # as it is now that they are locked
        evidence = {"node": row["node"], "detail": f"it was not started there within {seconds:g} s"}
        stopped += transitions.stop([row["job_id"]], EndReason.NODE_FAULT, evidence, "scheduler")
        logger.warning("job %d was not started by node %s", row["job_id"], row["node"], extra={"job_id": row["job_id"]})
    if stopped:
        events.changed("jobs", stopped)
    return stopped


def _end() -> list[int]:
    reports.lock_jobs([row["job_id"] for row in query(_SILENT, [STOP_SECONDS])])
    gone = query(_SILENT, [STOP_SECONDS])
    if gone:
        logger.warning("%d ranks that never started are given up: their nodes say nothing of them", len(gone))
        reports.fault([((r["job_id"], r["number"], r["rank"]), r["node_id"], r["now"]) for r in gone])
    return [row["job_id"] for row in gone]
