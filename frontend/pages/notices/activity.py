"""Automatic actions and job results, derived from events, incidents, budgets and refunds."""

import unicodedata
from collections.abc import Collection
from datetime import datetime
from itertools import islice
from typing import NamedTuple
from urllib.parse import quote

from django.utils.text import Truncator

from frontend.live.topics import Topic
from gpusched.lib.db.sql import Row, prepared
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from gpusched.protocol.amounts import exact
from gpusched.protocol.reasons import NODE_FAULTS, EndReason
from jobs.redaction import ANOTHER
from nodes import redaction
from nodes.redaction import AUTO_CORDON_NOTE
from tenants.auth.page_access import Visible

MAX_ROWS = 100
MAX_OF_NAME = 60
# Characters that set the direction of the text after them.
_DIRECTIONS = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
# Only the latest events are searched.
_MAX_LOOKED_AT = 20_000
DAYS = 14


class Activity(NamedTuple):
    """`tenant_id`: the tenant whose members can read it, None for a node. `other_tenant_id`: of another job in the
    sentence; `redacted_sentence`: for viewers who cannot see that tenant."""

    row: Row
    at: datetime
    tenant_id: int | None
    user_id: int | None = None
    other_tenant_id: int | None = None
    redacted_sentence: str = ""


# For an event e: whether the job was requeued after that attempt.
IS_REQUEUED = """EXISTS (SELECT 1 FROM jobs_events r WHERE r.job_id = e.job_id AND r.kind = 'requeued'
                      AND r.attempt = e.attempt) AS is_requeued"""
# Jobs stopped by the system or ended by node faults. The limit is per tenant, here and below, so that one tenant's
# activity does not displace another's.
_EVENTS = f"""
    SELECT e.*, t.name AS tenant, o.tenant_id AS other_tenant_id, ot.name AS other_tenant, {IS_REQUEUED} FROM (
        SELECT e.id, e.job_id, e.at, e.kind, e.attempt, e.data, j.name, j.tenant_id, j.user_id,
               row_number() OVER (PARTITION BY j.tenant_id ORDER BY e.id DESC) AS place
          FROM jobs_events e JOIN jobs_all j ON j.id = e.job_id
         WHERE e.id > (SELECT max(id) FROM jobs_events) - %(looked_at)s
           AND e.at > now() - make_interval(days => %(days)s)
           AND (e.kind = 'stopping' AND e.actor = 'scheduler'
                OR e.kind = 'ended' AND e.data->>'reason' = ANY(%(faults)s)
                OR e.kind = 'cancelled' AND e.data->>'reason' = 'dependency_failed')) e
      JOIN tenants_all t ON t.id = e.tenant_id
      LEFT JOIN jobs_all o ON o.id = (e.data->>'by_job')::bigint LEFT JOIN tenants_all ot ON ot.id = o.tenant_id
     WHERE e.place <= %(most)s ORDER BY e.id DESC
"""
_INCIDENTS = """
    SELECT i.id, i.since AS at, i.kind, i.cause, n.name AS node, d.index AS gpu
      FROM nodes_incidents i JOIN nodes_all n ON n.id = i.node_id LEFT JOIN nodes_devices d ON d.id = i.device_id
     WHERE i.since > now() - make_interval(days => %(days)s)
       AND (i.kind IN ('dirty', 'foreign', 'degraded', 'lost', 'node_lost')
            OR i.kind = 'cordoned' AND starts_with(i.cause, %(held)s)
            OR i.kind = 'quarantined' AND starts_with(i.cause, 'dirty for'))
     ORDER BY i.since DESC, i.id DESC LIMIT %(most)s
"""
_CROSSINGS = """
    SELECT c.*, t.name AS tenant FROM (
        SELECT id, at, bound, gpu_hours, tenant_id, row_number() OVER (PARTITION BY tenant_id ORDER BY id DESC) AS place
          FROM tenants_budget_crossings WHERE at > now() - make_interval(days => %(days)s)) c
      JOIN tenants_all t ON t.id = c.tenant_id WHERE c.place <= %(most)s ORDER BY c.id DESC
"""
# 0.01 GPU-hours: less would read as 0.
_MIN_GPU_SECONDS = 36
_REFUNDS = """
    SELECT r.*, t.name AS tenant FROM (
        SELECT max(r.id) AS id, max(r.at) AS at, e.job_id, j.tenant_id, j.user_id,
               sum(e.gpus * date_part('epoch', e.ended_at - e.started_at)) / 3600 AS gpu_hours,
               row_number() OVER (PARTITION BY j.tenant_id ORDER BY max(r.id) DESC) AS place
          FROM tenants_refunds r JOIN tenants_usage e ON e.id = r.entry_id JOIN jobs_all j ON j.id = e.job_id
         WHERE r.id > (SELECT max(id) FROM tenants_refunds) - %(looked_at)s
           AND r.at > now() - make_interval(days => %(days)s)
         GROUP BY e.job_id, j.tenant_id, j.user_id
        HAVING sum(e.gpus * date_part('epoch', e.ended_at - e.started_at)) >= %(least)s) r
      JOIN tenants_all t ON t.id = r.tenant_id WHERE r.place <= %(most)s ORDER BY r.id DESC
"""
_KINDS = {
    EndReason.PREEMPTED: ("preempted", "amber"),
    EndReason.HELD_IDLE: ("ended_idle", "amber"),
    EndReason.DEPENDENCY_FAILED: ("dependency_failed", "amber"),
}
_FAULT_PHRASES = {
    "dirty": "is not free after a job, or its driver hangs",
    "foreign": "has a process that gpusched did not start",
    "degraded": "failed",
    "lost": "is no longer seen",
    "quarantined": "was quarantined",
}


def load() -> list[Activity]:
    """Load the latest activities of each tenant and of the fleet, newest first."""
    params = {
        "looked_at": _MAX_LOOKED_AT, "days": DAYS, "most": MAX_ROWS, "held": AUTO_CORDON_NOTE,
        "faults": sorted(NODE_FAULTS),
        "least": _MIN_GPU_SECONDS,
    }  # fmt: skip
    activities = [
        *(_of_event(row) for row in prepared(_EVENTS, params)),
        *(_of_incident(row) for row in prepared(_INCIDENTS, params)),
        *(_of_crossing(row) for row in prepared(_CROSSINGS, params)),
        *(_of_refund(row) for row in prepared(_REFUNDS, params)),
    ]
    return sorted(activities, key=lambda activity: activity.at, reverse=True)


def restrict(activities: Collection[Activity], visible: Visible, *, with_nodes: bool = False) -> list[Activity]:
    """Return the latest activities for a viewer, redacted. `with_nodes`: fill the remaining space with node activities,
    which otherwise only admins see."""
    if visible is None:
        return list(islice(activities, MAX_ROWS))
    tenant_activities = list(islice((activity for activity in activities if activity.tenant_id in visible), MAX_ROWS))
    node_activities = (activity for activity in activities if with_nodes and activity.tenant_id is None)
    keys = {
        activity.row["key"]
        for activity in [*tenant_activities, *islice(node_activities, MAX_ROWS - len(tenant_activities))]
    }
    return [_redact(activity, visible) for activity in activities if activity.row["key"] in keys]


def _redact(activity: Activity, visible: tuple[int, ...]) -> Activity:
    is_visible = activity.tenant_id is not None and activity.other_tenant_id in (None, *visible)
    return activity if is_visible else activity._replace(row={**activity.row, "sentence": activity.redacted_sentence})


def activity_row(
    key: str, at: datetime, kind: str, severity: str, sentence: str, href: str | None, tenant: str | None = None
) -> Row:
    """Return a row; `severity` is red, amber or info."""
    return {
        "key": key, "at": rfc3339(at), "kind": kind, "severity": severity, "sentence": sentence, "href": href,
        "tenant": tenant,
    }  # fmt: skip


def requeue_suffix(row: Row) -> str:
    """Return the suffix of a requeued job; `row` has IS_REQUEUED."""
    return "; it is back in the queue" if row["is_requeued"] else ""


def _of_event(row: Row) -> Activity:
    kind, severity = _KINDS.get(row["data"].get("reason", ""), ("node_fault", "red"))
    href = f"/jobs/{row['job_id']}/"
    data = row["data"]
    if data.get("by") == ANOTHER:
        data = {**data, "by": f"job {data['by_job']} of tenant {row['other_tenant']}"}
    activity = activity_row(f"event:{row['id']}", row["at"], kind, severity, _sentence(row, data), href, row["tenant"])
    redacted = _sentence(row, {**data, "by": ANOTHER})
    return Activity(activity, row["at"], row["tenant_id"], row["user_id"], row["other_tenant_id"], redacted)


def named(job_id: int, name: str) -> str:
    """Return a job id and its shortened name, so that the rest of the sentence stays visible. A name that is written
    from right to left is isolated, so that it does not reverse the rest."""
    shown = Truncator(name.translate(_DIRECTIONS)).chars(MAX_OF_NAME)
    is_reversed = any(unicodedata.bidirectional(character) in ("R", "AL") for character in shown)
    return f"{job_id} \u2068{shown}\u2069" if is_reversed else f"{job_id} {shown}"


def _sentence(row: Row, data: Row) -> str:
    reason = reasons.sentence(data.get("reason", ""), data)
    return f"job {named(row['job_id'], row['name'])}: {reason}{requeue_suffix(row)}"


def _of_incident(row: Row) -> Activity:
    kind = "node_held" if row["kind"] == "cordoned" else row["kind"]
    severity = "amber" if kind in ("dirty", "foreign") else "red"
    href = f"/nodes/{quote(row['node'], safe='')}/"
    activity = activity_row(f"incident:{row['id']}", row["at"], kind, severity, _of_node(row), href)
    return Activity(activity, row["at"], None, redacted_sentence=_of_node(redaction.redact_notes(row, ())))


def _of_node(row: Row) -> str:
    if row["kind"] == "node_lost":
        return f"node {row['node']} stopped reporting"
    if row["kind"] == "cordoned":
        return f"node {row['node']} is {row['cause']}"
    cause = f": {row['cause']}" if row["cause"] else ""
    return f"GPU {row['gpu']} of {row['node']} {_FAULT_PHRASES[row['kind']]}{cause}"


def _of_crossing(row: Row) -> Activity:
    effect = "it starts no more GPU jobs" if row["bound"] == "hard" else "its jobs continue"
    budget = f"its {row['bound']} budget of {exact(row['gpu_hours'])} GPU-hours"
    sentence = f"tenant {row['tenant']} has used up {budget}; {effect}"
    kind, severity = f"budget_{row['bound']}", "red" if row["bound"] == "hard" else "amber"
    activity = activity_row(
        f"budget:{row['id']}", row["at"], kind, severity, sentence, f"/tenants/{row['tenant']}/", row["tenant"]
    )
    return Activity(activity, row["at"], row["tenant_id"])


def _of_refund(row: Row) -> Activity:
    sentence = f"{row['gpu_hours']:.2f} GPU-hours of job {row['job_id']} were refunded because its node failed"
    activity = activity_row(
        f"refund:{row['id']}", row["at"], "refunded", "info", sentence, f"/jobs/{row['job_id']}/", row["tenant"]
    )
    return Activity(activity, row["at"], row["tenant_id"], row["user_id"])


TOPICS = (
    # No page subscribes to it; notices and health are built from it.
    Topic("activity", lambda _requested, _loaded: load(), lambda _rows, _key, _viewer: None, key_of=lambda _: None),
)
