"""The rows of topic `reservations`, whose changes make the calendar load again."""

from collections.abc import Sequence

from frontend.live.topics import Topic
from gpusched.lib.db.sql import Row, query
from gpusched.lib.times import rfc3339
from tenants.auth.page_access import Visible

# Reservations that begin later, or ended earlier, are on no calendar.
_ROWS = """
    SELECT r.id, r.tenant_id, r.state, r.starts_at, r.ends_at, r.problem, j.used
      FROM scheduling_reservations r
     CROSS JOIN LATERAL (
           SELECT count(*) AS used FROM scheduling_reservation_uses u
             JOIN nodes_ranks s ON s.job_id = u.job_id AND s.number = u.attempt AND s.state <> 'ended'
             JOIN nodes_allocations l ON l.assignment_id = s.id WHERE u.reservation_id = r.id) j
     WHERE r.ends_at > now() - interval '31 days' AND r.starts_at < now() + interval '31 days' ORDER BY r.id
"""


def restrict(rows: Sequence[Row], visible: Visible) -> dict[str, Row]:
    """Return the reservations of visible tenants by id, and the times of all others without ids."""
    shown: dict[str, Row] = {}
    others: list[list[str | None]] = []
    for row in rows:
        times = [rfc3339(row["starts_at"]), rfc3339(row["ends_at"])]
        if visible is None or row["tenant_id"] in visible:
            names = ("state", "problem", "used")
            shown[str(row["id"])] = {"starts_at": times[0], "ends_at": times[1], **{name: row[name] for name in names}}
        else:
            others.append([*times, row["state"]])
    return {**shown, "others": {"times": sorted(others, key=str)}}


TOPICS = (
    Topic(
        "reservations",
        lambda _requested, _loaded: query(_ROWS),
        lambda rows, _, viewer: restrict(rows, viewer.visible),
        invalidated_by=frozenset({"reservations", "jobs", "tenants"}),
        pause_seconds=2.0,
    ),
)
