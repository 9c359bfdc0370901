"""Cordon a node on which jobs of different users ended as node faults. Each cordon lasts twice as long as the previous
one, or until an admin uncordons the node.

A shared defect (a driver, a file server) must not take all nodes out of service: at most a tenth of the nodes, but at
least one, are cordoned like this at a time. A lost or rebooted node does not count as a fault: it has its own reason. A
fault of a GPU does not count either: only that GPU is taken out of service.

A node whose disk has become read-only or full can start no job: it is cordoned until the disk can be written again."""

import logging
from collections.abc import Iterable, Mapping

from gpusched.json_log import job_fields
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import query
from gpusched.protocol.agent_messages import NodeFacts
from gpusched.protocol.findings import UNUSABLE_DISK
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import NodeIntent
from nodes.health import cordon
from nodes.health.gpu_status import IS_REPLACED
from nodes.redaction import AUTO_CORDON_NOTE

logger = logging.getLogger(__name__)
NODE_FAULT_REASONS = frozenset({EndReason.NODE_FAULT, EndReason.SUPERVISOR_LOST})
MIN_USERS, MAX_PART = 2, 10
FIRST_MINUTES, LONGEST_MINUTES = 10, 24 * 60
# A node without a fault for this long after a cordon starts anew.
FORGIVEN_AFTER_DAYS = 7

# True for a rank that ended because of one of its GPUs, which is then out of service itself. The detail names the GPU,
# from the agent or nodes/ranks/fault_attribution.py; for a rank that was stopped for it, the GPU's incident does.
_IS_OF_GPU = """(starts_with(s.detail, 'GPU ') OR EXISTS (
           SELECT 1 FROM nodes_incident g
            WHERE g.node_id = s.node_id AND g.kind IN ('lost', 'degraded') AND s.device_ids @> to_jsonb(g.device_id)
              AND s.ended_at BETWEEN g.since AND coalesce(g.until, 'infinity')))"""
# Counting starts anew after an admin's cordon. The reasons are literals to match the index `assignment_faults`.
_FAULTY = f"""
    SELECT n.id, n.name, count(DISTINCT s.id) AS faults, json_agg(DISTINCT s.job_id) AS jobs
      FROM nodes_assignment s JOIN jobs_all j ON j.id = s.job_id JOIN nodes_node n ON n.id = s.node_id
     WHERE s.node_id = ANY(%s) AND s.reason IN ('node_fault', 'supervisor_lost') AND n.intent = 'open'
       AND s.ended_at > clock_timestamp() - interval '1 hour' AND NOT {_IS_OF_GPU}
       AND s.ended_at > coalesce((SELECT max(i.until) FROM nodes_incident i
                                   WHERE i.node_id = s.node_id AND i.kind IN ('cordoned', 'draining')), '-infinity')
     GROUP BY n.id HAVING count(DISTINCT j.user_id) >= %s ORDER BY n.id
"""
_CAPACITY = """
    SELECT greatest(1, count(*) / %s)
           - count(*) FILTER (WHERE intent <> 'open' AND starts_with(intent_note, %s)) AS room
      FROM nodes_node WHERE removed_at IS NULL
"""


def cordon_faulty(node_ids: Iterable[int]) -> None:
    """Cordon the nodes that reached the limit, among those on which ranks just ended as node faults."""
    faulty = query(_FAULTY, [sorted(set(node_ids)), MIN_USERS])
    if faulty:
        # Concurrent callers must not both take the last place. Released at the end of the transaction.
        query("SELECT pg_advisory_xact_lock(%s)", [Lock.NODE_HOLDS])
    for node in faulty:
        if query(_CAPACITY, [MAX_PART, AUTO_CORDON_NOTE])[0]["room"] < 1:
            message = "node %s has had %d faults, but too many nodes are cordoned already"
            concerned = {"node": node["name"], **job_fields(node["jobs"])}
            logger.warning(message, node["name"], node["faults"], extra=concerned)
            continue
        jobs = ", ".join(map(str, sorted(node["jobs"])))
        note = f"{AUTO_CORDON_NOTE}{node['faults']} node faults: jobs {jobs}"
        logger.warning("node %s is %s", node["name"], note, extra={"node": node["name"], **job_fields(node["jobs"])})
        cordon.set_intent(node["name"], NodeIntent.CORDONED, note)


def unusable_disk(facts: NodeFacts | None) -> str:
    """Return what the disk of a node became that can start no job, as `full`; empty if it can be written."""
    hints = facts.hints if facts else []
    return next((UNUSABLE_DISK[hint.check] for hint in hints if hint.check in UNUSABLE_DISK), "")


def cordon_unusable(disks: Mapping[int, str]) -> None:
    """Cordon those of these nodes that are open; {id: what its disk became}. All of them, since jobs fail on each."""
    rows = query("SELECT id, name FROM nodes_node WHERE id = ANY(%s) AND intent = 'open' ORDER BY id", [sorted(disks)])
    for node in rows:
        became = disks[node["id"]]
        logger.warning("node %s is cordoned: its disk is %s", node["name"], became, extra={"node": node["name"]})
        cordon.set_intent(node["name"], NodeIntent.CORDONED, f"{AUTO_CORDON_NOTE}its disk became {became}")


# `held`: the number of cordons including this one. Devices that are out of service keep the node cordoned.
_DUE = f"""
    SELECT n.name, h.held FROM nodes_node n
      JOIN nodes_incident i ON i.node_id = n.id AND i.device_id IS NULL AND i.kind = 'cordoned' AND i.until IS NULL
     CROSS JOIN LATERAL (SELECT count(*)::int AS held FROM nodes_incident b
                          WHERE b.node_id = n.id AND b.kind = 'cordoned' AND starts_with(b.cause, %(note)s)
                            AND coalesce(b.until, i.since) >= i.since - make_interval(days => %(days)s)) h
     WHERE n.intent = 'cordoned' AND starts_with(n.intent_note, %(note)s) AND n.state = 'online'
       AND i.since < clock_timestamp()
                     - make_interval(mins => least(%(longest)s, %(first)s * 2 ^ least(h.held - 1, 20))::int)
       AND NOT EXISTS (SELECT 1 FROM nodes_device d WHERE d.node_id = n.id
                          AND d.health IN ('degraded', 'lost') AND NOT {IS_REPLACED})
       AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(n.hints) h WHERE h ->> 'check' = ANY(%(unusable)s))
     ORDER BY n.id FOR NO KEY UPDATE OF n
"""


def uncordon_due() -> int:
    """Open cordoned nodes whose time is over and that are well. Inside a transaction. Return how many."""
    times = {"days": FORGIVEN_AFTER_DAYS, "first": FIRST_MINUTES, "longest": LONGEST_MINUTES}
    due = query(_DUE, {"note": AUTO_CORDON_NOTE, "unusable": list(UNUSABLE_DISK), **times})
    for node in due:
        message = "node %s is open again; it was cordoned %d times"
        logger.warning(message, node["name"], node["held"], extra={"node": node["name"]})
        cordon.set_intent(node["name"], NodeIntent.OPEN)
    return len(due)
