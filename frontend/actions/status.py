"""Status of the latest request on a job, a node or a GPU, the same on every page.

Agents confirm requests on jobs: a stop when no process is left, a time limit when it is in force. Requests that only
the server handles are confirmed at once. The scheduler confirms requests on nodes and GPUs by its next cycle."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from frontend.ui.formatting import roughly
from gpusched.lib.db.sql import Row, query
from gpusched.lib.times import parsed
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import FINAL, NodeIntent

# scheduling.status.cluster.scheduler_lag, called once per page.
SchedulerLag = Callable[[], Row]
# After this time the page shows what is missing.
LATE_AFTER = timedelta(seconds=30)
# How long a confirmed request is shown, and an unconfirmed one.
SHOW_CONFIRMED_FOR, SHOW_AWAITED_FOR = timedelta(minutes=5), timedelta(days=1)
# A node is silent after this time: agents send a message every two seconds.
HEARD_SECONDS = 10.0
_MAX_NAMED = 3

_STOPS = {EndReason.CANCELLED: "cancel", EndReason.REQUEUED: "requeue"}
_KINDS = {
    "held": "hold", "released": "release", "retried": "retry", "cancelled": "cancel", "limit_changed": "time limit",
    "stopping": "", "part_cancelled": "cancel",
}  # fmt: skip
_LATEST = """
    SELECT kind, at, attempt, actor, data->>'reason' AS reason FROM jobs_events
     WHERE job_id = %s AND kind = ANY(%s) AND actor NOT IN ('', 'scheduler') ORDER BY id DESC LIMIT 1
"""
_RANKS = """
    SELECT n.name, extract(epoch FROM clock_timestamp() - coalesce(n.last_seen_at, n.joined_at))::float8 AS silent,
           bool_and({answered}) AS has_answered
      FROM nodes_ranks s JOIN nodes_all n ON n.id = s.node_id JOIN jobs_all j ON j.id = s.job_id
     WHERE {whose} GROUP BY n.id, n.name, n.last_seen_at, n.joined_at ORDER BY n.name
"""
# A lost node comes online again only when no process of an ended rank is left on it.
_IS_GONE = "s.state = 'ended' AND (s.reason <> 'node_lost' OR n.state = 'online')"
_IS_IN_FORCE = "s.state = 'ended' OR s.limit_version >= j.limit_version"
_IS_ATTEMPT = "j.id = %s AND s.number = %s"
# For arrays: ended elements are skipped, as they are many and have answered.
_STOPPING = "j.array_id = %s AND j.state = 'stopping' AND s.number = j.attempt"
_PLACED = "j.array_id = %s AND j.state IN ('scheduled', 'running') AND s.number = j.attempt"


def of_job(job: Mapping[str, Any]) -> Row:
    """Return the request on a job, or an empty dict. `job`: its `id state attempt array_count`.

    Keys: `status` (requested, late or confirmed), `detail`, `at`, `action`, `by` and `is_awaited` (poll again soon)."""
    events = query(_LATEST, [job["id"], list(_KINDS)])
    if not events:
        return {}
    [event] = events
    action = _KINDS[event["kind"]] or _STOPS.get(event["reason"], "")
    is_limit = event["kind"] == "limit_changed"
    if not action or (is_limit and (job["state"] in FINAL or event["attempt"] != job["attempt"])):
        return {}
    nodes = _nodes(job, event) if is_limit or event["kind"] in ("stopping", "part_cancelled") else []
    missing = [node for node in nodes if not node["has_answered"]]
    request = {"action": action, "by": event["actor"], "at": event["at"]}
    if not missing:
        return _represent(request, "confirmed", f"by {_named(nodes)}" if nodes else "")
    return _represent(request, _waiting(event["at"]), _what_is_missing(missing, is_limit=is_limit))


def _nodes(job: Mapping[str, Any], event: Row) -> Sequence[Row]:
    """Return each node that must answer: `name`, `silent` (seconds), `has_answered`."""
    is_limit = event["kind"] == "limit_changed"
    if job["array_count"] is None:
        whose, params = _IS_ATTEMPT, [job["id"], event["attempt"]]
    else:
        whose, params = _PLACED if is_limit else _STOPPING, [job["id"]]
    return query(_RANKS.format(answered=_IS_IN_FORCE if is_limit else _IS_GONE, whose=whose), params)


def _what_is_missing(missing: Sequence[Row], *, is_limit: bool) -> str:
    silent = [node for node in missing if node["silent"] > HEARD_SECONDS]
    if silent:
        longest = max(node["silent"] for node in silent)
        return f"node {_named(silent)} silent for {roughly(longest)}"
    return f"node {_named(missing)} {'has not applied it' if is_limit else 'is ending its processes'}"


def _named(nodes: Sequence[Row]) -> str:
    names = [node["name"] for node in nodes]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def of_node(node: Mapping[str, Any], incidents: Collection[Row], jobs_left: int, scheduler_lag: SchedulerLag) -> Row:
    """Return the request on a node. `node`: its `intent`, as listed; `incidents`: of the node; `scheduler_lag`: called
    if needed."""
    closed = [row for row in incidents if row["device_id"] is None and row["kind"] in ("cordoned", "draining")]
    requested_at = _since(closed, is_active=node["intent"] != NodeIntent.OPEN)
    if requested_at is None:
        return {}
    running = f"{jobs_left} job{' still runs' if jobs_left == 1 else 's still run'} there"
    if node["intent"] == NodeIntent.OPEN:
        return _await_scheduler("uncordon", requested_at, "it accepts jobs again", scheduler_lag())
    if node["intent"] == NodeIntent.CORDONED:
        suffix = f"; {running}" if jobs_left else ""
        return _await_scheduler(
            "cordon", requested_at, f"no new job starts on it{suffix}", scheduler_lag(), is_lasting=True
        )
    detail = running if jobs_left else "no job runs on it: it is ready for maintenance"
    request = _await_scheduler("drain", requested_at, detail, scheduler_lag(), is_lasting=True)
    if request["status"] == "confirmed":
        request["word"] = "confirmed, draining" if jobs_left else "confirmed, drained"
    return request


def of_device(device: Mapping[str, Any], incidents: Collection[Row], scheduler_lag: SchedulerLag) -> Row:
    """Return the request on a GPU. `device`: its `id health`. Shown only while recent: its health is shown anyway."""
    device_incidents = [row for row in incidents if row["device_id"] == device["id"] and row["kind"] == "quarantined"]
    is_out = device["health"] == "quarantined"
    requested_at = _since(
        [row for row in device_incidents if row["cause"].endswith(")") or row["cause"].startswith("by ")],
        is_active=is_out,
    )
    if requested_at is None:
        return {}
    action, detail = ("quarantine", "no new jobs") if is_out else ("clear", "in service")
    return _await_scheduler(action, requested_at, detail, scheduler_lag())


def _since(incidents: Collection[Row], *, is_active: bool) -> datetime | None:
    """Return when the active incident began, or when the latest one ended."""
    moments = [row["since"] if is_active else row["until"] for row in incidents if (row["until"] is None) == is_active]
    return max(moments, default=None)


def _await_scheduler(action: str, requested_at: datetime, detail: str, lag: Row, *, is_lasting: bool = False) -> Row:
    request = {"action": action, "by": "", "at": requested_at}
    if lag["last_cycle_at"] is not None and parsed(lag["last_cycle_at"]) > requested_at:
        return _represent(request, "confirmed", detail, is_lasting=is_lasting)
    silent = f" for {lag['age_seconds']:.0f} s" if lag["age_seconds"] is not None else ""
    return _represent(request, _waiting(requested_at), f"the scheduler has not run a cycle{silent}")


def _waiting(at: datetime) -> str:
    return "late" if timezone.now() - at > LATE_AFTER else "requested"


_BADGES = {
    "requested": ("pending", "requested"),
    "late": ("amber", "not confirmed yet"),
    "confirmed": ("completed", "confirmed"),
}


def _represent(request: Row, status: str, detail: str, *, is_lasting: bool = False) -> Row:
    age = timezone.now() - request["at"]
    if not is_lasting and age > (SHOW_CONFIRMED_FOR if status == "confirmed" else SHOW_AWAITED_FOR):
        return {}
    state, word = _BADGES[status]
    return {
        **request,
        "status": status,
        "state": state,
        "word": word,
        "detail": detail,
        "is_awaited": status != "confirmed",
    }
