"""What somebody asked of a job, a node or a GPU last, and who has confirmed that it is so; the same on every page.

Of a job its agents confirm: that no process is left of what was to stop, that a new time limit is in force. What
nobody but the server has to do is so with its answer. Of nodes and GPUs the scheduler confirms, by a look since."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from gpusched.lib.db.sql import query
from gpusched.lib.times import parsed
from gpusched.protocol.reasons import EndReason
from gpusched.protocol.states import FINAL, NodeIntent

Row = dict[str, Any]
# How the scheduler stands (scheduling.status.cluster.scheduler_lag): one answer for all that a page shows.
SchedulerLag = Callable[[], Row]
# Then it says what is in the way.
LATE_AFTER = timedelta(seconds=30)
# What is confirmed is told for so long; what is not, for as long as it may still come.
SHOW_CONFIRMED_FOR, SHOW_AWAITED_FOR = timedelta(minutes=5), timedelta(days=1)
# A node that was heard since then is not silent: agents say something every two seconds.
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
# A node that was lost is online again only when no process is left there of what was to end.
_IS_GONE = "s.state = 'ended' AND (s.reason <> 'node_lost' OR n.state = 'online')"
_IS_IN_FORCE = "s.state = 'ended' OR s.limit_version >= j.limit_version"
_IS_ATTEMPT = "j.id = %s AND s.number = %s"
# Of arrays: elements that have ended are too many to look at, and have answered.
_STOPPING = "j.array_id = %s AND j.state = 'stopping' AND s.number = j.attempt"
_PLACED = "j.array_id = %s AND j.state IN ('scheduled', 'running') AND s.number = j.attempt"


def of_job(job: Mapping[str, Any]) -> Row:
    """`job`: `id state attempt array_count`. Empty if there is nothing to tell; else `status` (requested, late or
    confirmed), `says`, `at`, `what`, `by`, and `is_awaited`: worth another look soon."""
    found = query(_LATEST, [job["id"], list(_KINDS)])
    if not found:
        return {}
    [event] = found
    what = _KINDS[event["kind"]] or _STOPS.get(event["reason"], "")
    is_limit = event["kind"] == "limit_changed"
    if not what or (is_limit and (job["state"] in FINAL or event["attempt"] != job["attempt"])):
        return {}
    nodes = _nodes(job, event) if is_limit or event["kind"] in ("stopping", "part_cancelled") else []
    missing = [node for node in nodes if not node["has_answered"]]
    told = {"what": what, "by": event["actor"], "at": event["at"]}
    if not missing:
        return _represent(told, "confirmed", f"by {_named(nodes)}" if nodes else "")
    return _represent(told, _waiting(event["at"]), _what_is_missing(missing, is_limit=is_limit))


def _nodes(job: Mapping[str, Any], event: Row) -> Sequence[Row]:
    """Each node that has to answer: `name`, `silent` (seconds), `has_answered`."""
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
        return f"node {_named(silent)} silent for {longest:.0f} s"
    return f"node {_named(missing)} {'has not applied it' if is_limit else 'is ending its processes'}"


def _named(nodes: Sequence[Row]) -> str:
    names = [node["name"] for node in nodes]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def of_node(node: Mapping[str, Any], incidents: Collection[Row], jobs_left: int, beat: SchedulerLag) -> Row:
    """Return the request on a node. `node`: its `intent`, as listed; `incidents`: its own; `beat`: asked if needed."""
    closed = [row for row in incidents if row["device_id"] is None and row["kind"] in ("cordoned", "draining")]
    wanted_at = _since(closed, is_so=node["intent"] != NodeIntent.OPEN)
    if wanted_at is None:
        return {}
    there = f"{jobs_left} job{' still runs' if jobs_left == 1 else 's still run'} there"
    if node["intent"] == NodeIntent.OPEN:
        return _await_scheduler("uncordon", wanted_at, "it accepts jobs again", beat())
    if node["intent"] == NodeIntent.CORDONED:
        goes_on = f"; {there}" if jobs_left else ""
        return _await_scheduler("cordon", wanted_at, f"no new job starts on it{goes_on}", beat(), is_lasting=True)
    says = there if jobs_left else "no job runs on it: it is ready for maintenance"
    asked = _await_scheduler("drain", wanted_at, says, beat(), is_lasting=True)
    if asked["status"] == "confirmed":
        asked["word"] = "confirmed, draining" if jobs_left else "confirmed, drained"
    return asked


def of_device(device: Mapping[str, Any], incidents: Collection[Row], beat: SchedulerLag) -> Row:
    """`device`: `id health` of it. Told while it is news: what is wrong with a GPU stands beside it anyway."""
    own = [row for row in incidents if row["device_id"] == device["id"] and row["kind"] == "quarantined"]
    is_out = device["health"] == "quarantined"
    wanted_at = _since(
        [row for row in own if row["cause"].endswith(")") or row["cause"].startswith("by ")], is_so=is_out
    )
    if wanted_at is None:
        return {}
    what, says = ("quarantine", "no new jobs") if is_out else ("clear", "in service")
    return _await_scheduler(what, wanted_at, says, beat())


def _since(incidents: Collection[Row], *, is_so: bool) -> datetime | None:
    """Since when it lasts, or, if it is over, when the latest ended."""
    moments = [row["since"] if is_so else row["until"] for row in incidents if (row["until"] is None) == is_so]
    return max(moments, default=None)


def _await_scheduler(what: str, wanted_at: datetime, says: str, beat: Row, *, is_lasting: bool = False) -> Row:
    told = {"what": what, "by": "", "at": wanted_at}
    if beat["last_cycle_at"] is not None and parsed(beat["last_cycle_at"]) > wanted_at:
        return _represent(told, "confirmed", says, is_lasting=is_lasting)
    silent = f" for {beat['age_seconds']:.0f} s" if beat["age_seconds"] is not None else ""
    return _represent(told, _waiting(wanted_at), f"the scheduler has not run a cycle{silent}")


def _waiting(at: datetime) -> str:
    return "late" if timezone.now() - at > LATE_AFTER else "requested"


_BADGES = {
    "requested": ("pending", "requested"),
    "late": ("amber", "not confirmed yet"),
    "confirmed": ("completed", "confirmed"),
}


def _represent(asked: Row, status: str, says: str, *, is_lasting: bool = False) -> Row:
    age = timezone.now() - asked["at"]
    if not is_lasting and age > (SHOW_CONFIRMED_FOR if status == "confirmed" else SHOW_AWAITED_FOR):
        return {}
    state, word = _BADGES[status]
    return {**asked, "status": status, "state": state, "word": word, "says": says, "is_awaited": status != "confirmed"}
