"""The rows of topic `notices`: results of a user's jobs, automatic actions, and the unread count."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from frontend.live.topics import Audience, Topic
from frontend.models import NoticesSeen
from frontend.pages.job.rows import part_cancelled
from frontend.pages.my_work import rows as my_work_rows
from frontend.pages.notices import activity
from frontend.pages.notices.activity import Activity, activity_row
from frontend.viewer import Viewer
from gpusched.lib.bus import events
from gpusched.lib.db.sql import Row, prepared, query
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from gpusched.protocol.reasons import Pending
from jobs.listing import representation

MAX_NOTICES = 50
LONG_WAIT_MINUTES = 60
# A start is news only after a wait.
_WAITED_SECONDS = 60
_MAX_LOOKED_AT = 20_000

# For arrays only the end of the array, not of each element. The limit is per user, so that one user does not displace
# another.
_USER_EVENTS = f"""
    SELECT e.*, t.name AS tenant, {activity.IS_REQUEUED} FROM (
        SELECT e.id, e.job_id, e.at, e.kind, e.attempt, e.actor, e.data, j.name, j.user_id, j.tenant_id,
               row_number() OVER (PARTITION BY j.user_id ORDER BY e.id DESC) AS place
          FROM jobs_events e JOIN jobs_all j ON j.id = e.job_id JOIN tenants_people u ON u.id = j.user_id
         WHERE e.id > (SELECT max(id) FROM jobs_events) - %(looked_at)s
           AND e.at > now() - make_interval(days => %(days)s) AND j.user_id = ANY(%(users)s)
           AND {my_work_rows.IS_VISIBLE} AND (e.kind IN ('idle_warning', 'idle_would_end') OR j.array_id IS NULL AND (
                e.kind = 'ended'
                OR e.kind = 'started' AND e.attempt = 1 AND e.at > j.submitted_at + make_interval(secs => %(waited)s)
                OR e.kind IN ('cancelled', 'part_cancelled', 'held', 'stopping')
                   AND e.actor NOT IN ('', 'scheduler', u.username)))) e
      JOIN tenants_all t ON t.id = e.tenant_id WHERE e.place <= %(most)s ORDER BY e.id DESC
"""
# For arrays the waiting elements, unless max_parallel holds them back as requested.
_LONG_WAITS = f"""
    SELECT w.*, t.name AS tenant FROM unnest(%(users)s::int[]) AS u (id)
     CROSS JOIN LATERAL (
        SELECT j.id, j.name, j.user_id, j.tenant_id, j.submitted_at + make_interval(mins => %(minutes)s) AS at,
               j.reason, j.evidence, j.reason_since, j.stop_reason, j.stop_evidence, j.exit_code, j.signal,
               j.max_runtime_seconds, NULL AS placement, j.elements_waiting AS elements
          FROM jobs_all j WHERE j.user_id = u.id AND j.is_waiting AND j.state <> 'held' AND {my_work_rows.IS_VISIBLE}
           AND (j.array_count IS NULL OR j.reason <> '{Pending.MAX_PARALLEL}')
           AND j.submitted_at < now() - make_interval(mins => %(minutes)s) ORDER BY j.submitted_at LIMIT %(most)s) w
      JOIN tenants_all t ON t.id = w.tenant_id
"""
_READ_UNTIL = "SELECT user_id, until FROM frontend_noticesseen WHERE user_id = ANY(%s)"


@dataclass(frozen=True)
class Notices:
    """`by_user`: newest first; `read_until`: until when each user has read."""

    by_user: dict[int, list[Activity]]
    activities: list[Activity]
    read_until: dict[int, datetime]


def load(user_ids: Collection[int], activities: list[Activity]) -> Notices:
    """`known`: what frontend.pages.notices.activity has loaded."""
    users = sorted(user_ids)
    params = {
        "users": users, "looked_at": _MAX_LOOKED_AT, "days": activity.DAYS, "waited": _WAITED_SECONDS,
        "most": MAX_NOTICES, "minutes": LONG_WAIT_MINUTES,
    }  # fmt: skip
    by_user: dict[int, list[Activity]] = {user: [] for user in users}
    for notice in [*map(_of_event, prepared(_USER_EVENTS, params)), *map(_of_wait, prepared(_LONG_WAITS, params))]:
        by_user[notice.user_id or 0].append(notice)
    return Notices(by_user, activities, {row["user_id"]: row["until"] for row in prepared(_READ_UNTIL, [users])})


def restrict(loaded: Notices, viewer: Viewer) -> dict[str, Row]:
    """Return the newest notices as `notice:<key>` with `is_mine`, and `state` with the unread count. The viewer's own
    notices take precedence."""
    if viewer.user_id is None:
        return {}
    by_system = activity.restrict(loaded.activities, viewer.visible)
    notices = {notice.row["key"]: (notice, notice.user_id == viewer.user_id) for notice in by_system}
    notices |= {notice.row["key"]: (notice, True) for notice in loaded.by_user.get(viewer.user_id, ())}
    latest = sorted(notices.values(), key=lambda pair: (pair[1], pair[0].at), reverse=True)[:MAX_NOTICES]
    read_until = loaded.read_until.get(viewer.user_id)
    rows = {f"notice:{notice.row['key']}": {**notice.row, "is_mine": is_mine} for notice, is_mine in latest}
    unread = sum(read_until is None or notice.at > read_until for notice, _ in latest)
    return {**rows, "state": {"unread": unread, "seen_until": rfc3339(read_until)}}


def mark_read(user_id: int) -> None:
    """Mark all current notices of the user as read."""
    query(
        f"INSERT INTO {NoticesSeen._meta.db_table} (user_id, until) VALUES (%s, clock_timestamp())"
        " ON CONFLICT (user_id) DO UPDATE SET until = excluded.until",
        [user_id],
    )
    events.changed("notices", [user_id])


def _of_event(row: Row) -> Activity:
    kind, severity, phrase = _describe(row)
    sentence = f"job {activity.named(row['job_id'], row['name'])}: {phrase}"
    sent = activity_row(
        f"event:{row['id']}", row["at"], kind, severity, sentence, f"/jobs/{row['job_id']}/", row["tenant"]
    )
    return Activity(sent, row["at"], row["tenant_id"], row["user_id"])


def _describe(row: Row) -> tuple[str, str, str]:
    """Return kind, severity and sentence of an event."""
    data, kind = row["data"], row["kind"]
    if kind == "started":
        return "started", "info", "started"
    if kind in ("idle_warning", "idle_would_end"):
        return "idle", "amber", reasons.sentence(data["reason"], data)
    by = {"by": row["actor"], **data}
    if kind != "ended":
        word = "is being stopped" if kind == "stopping" else part_cancelled(data) if kind == "part_cancelled" else kind
        return kind, "amber", f"{word} by {row['actor']}"
    if data.get("reason") == "exited" and data.get("exit_code") == 0:
        return "completed", "info", "completed"
    is_asked = data.get("reason") in ("cancelled", "requeued")
    return (
        "ended",
        "info" if is_asked else "red",
        reasons.sentence(data.get("reason", ""), by) + activity.requeue_suffix(row),
    )


def _of_wait(row: Row) -> Activity:
    reason = representation.reason(row)
    suffix = f": {reason['sentence']}" if reason else ""
    named, elements = activity.named(row["id"], row["name"]), row["elements"]
    subject = f"job {named} has"
    if elements is not None:
        subject = f"1 element of array {named} has" if elements == 1 else f"{elements} elements of array {named} have"
    sentence = f"{subject} waited for more than an hour{suffix}"
    sent = activity_row(
        f"wait:{row['id']}", row["at"], "waits", "amber", sentence, f"/jobs/{row['id']}/", row["tenant"]
    )
    return Activity(sent, row["at"], row["tenant_id"], row["user_id"])


TOPICS = (
    Topic(
        "notices",
        lambda requested, loaded: load(
            {viewer.user_id for _key, viewer in requested if viewer.user_id is not None}, loaded["activity"]
        ),
        lambda notices, _, viewer: restrict(notices, viewer),
        needs=("activity",),
        audience=Audience.PERSON,
        group="people",
        invalidated_by=frozenset({"jobs", "nodes", "tenants", "notices"}),
        pause_seconds=2.0,
    ),
)
