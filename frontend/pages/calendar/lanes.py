"""Reservations over time: a lane for each node, with rows of bars that do not overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from gpusched.lib.db.sql import Row, query
from gpusched.protocol.reasons import fix_plurals

_ON_NODES = """
    SELECT r.id, r.tenant_id, t.name AS tenant, p.username AS "user", r.state, r.is_hard, r.is_lease, r.note,
           n.name AS node, d.starts_at, d.ends_at, count(*) AS gpus,
           count(l.device_id) FILTER (WHERE u.job_id IS NOT NULL) AS used
      FROM scheduling_reservations r JOIN tenants_all t ON t.id = r.tenant_id
      LEFT JOIN tenants_people p ON p.id = r.user_id
      JOIN scheduling_reserved_devices d ON d.reservation_id = r.id JOIN nodes_all n ON n.id = d.node_id
      LEFT JOIN nodes_allocations l ON l.device_id = d.device_id AND r.state = 'active'
      LEFT JOIN nodes_ranks s ON s.id = l.assignment_id
      LEFT JOIN scheduling_reservation_uses u
        ON u.reservation_id = r.id AND u.job_id = s.job_id AND u.attempt = s.number
     WHERE d.ends_at > %(begin)s AND d.starts_at < %(end)s AND d.starts_at < d.ends_at
       AND r.state NOT IN ('cancelled', 'refused')
     GROUP BY r.id, r.tenant_id, t.name, p.username, r.state, r.is_hard, r.is_lease, r.note, n.name, d.starts_at,
              d.ends_at
     ORDER BY n.name, d.starts_at, r.id
"""


@dataclass(frozen=True)
class Window:
    """The shown time."""

    begin: datetime
    end: datetime

    def percent(self, moment: datetime) -> float:
        """Return the position of a moment, 0 to 100."""
        part = (moment - self.begin) / (self.end - self.begin)
        return round(100 * min(1.0, max(0.0, part)), 3)


def timeline(days: int, visible: Sequence[int] | None) -> dict[str, Any]:
    """Return what `calendar/lanes.html` draws of some days, of which an eighth has passed: the lanes, the marks of the
    axis, and the position of `now`."""
    now, span = timezone.now(), timedelta(days=days)
    window = Window(now - span / 8, now + span * 7 / 8)
    return {"lanes": node_lanes(window, visible), "ticks": ticks(window), "now": window.percent(now)}


def node_lanes(window: Window, visible: Sequence[int] | None) -> list[Row]:
    """Return {node, rows} for each node with reservations; `rows`: lists of bars that do not overlap. Reservations of
    hidden tenants have no name."""
    lanes: dict[str, list[list[Row]]] = {}
    for row in query(_ON_NODES, {"begin": window.begin, "end": window.end}):
        rows = lanes.setdefault(row["node"], [])
        free = next((bars for bars in rows if bars[-1]["ends_at"] <= row["starts_at"]), None)
        if free is None:
            rows.append(free := [])
        free.append(_bar(row, window, is_shown=visible is None or row["tenant_id"] in visible))
    return [{"node": node, "rows": rows} for node, rows in lanes.items()]


def _bar(row: Row, window: Window, *, is_shown: bool) -> Row:
    left = window.percent(row["starts_at"])
    text, label = _texts(row) if is_shown else ("reserved", f"{row['gpus']} GPUs of another tenant")
    times = f"{row['starts_at']:%Y-%m-%d %H:%M} to {row['ends_at']:%Y-%m-%d %H:%M} UTC"
    return {
        "id": row["id"] if is_shown else None,
        "left": left,
        "width": round(max(window.percent(row["ends_at"]) - left, 0.3), 3),
        "ends_at": row["ends_at"],
        "text": fix_plurals(text),
        "label": fix_plurals(f"{label}, {times}"),
        "kind": _kind(row) if is_shown else "other",
    }


def _texts(row: Row) -> tuple[str, str]:
    """Return the text of a bar, and its longer label."""
    word = "lease" if row["is_lease"] else "reservation" if row["is_hard"] else "soft reservation"
    use = ""
    if row["state"] == "active" and row["is_hard"]:
        use = f", {row['used']} used" if row["used"] else ", idle"
    owner = f" by {row['user']}" if row["user"] else ""
    note = f", {row['note']}" if row["note"] else ""
    label = f"{word} {row['id']}: {row['gpus']} GPUs of {row['tenant']}{owner}, {row['state']}{use}{note}"
    return f"{row['tenant']} {row['gpus']} GPUs{use}", label


def _kind(row: Row) -> str:
    if row["state"] not in ("planned", "active"):
        return "past"
    if not row["is_hard"]:
        return "soft"
    if row["state"] == "planned":
        return "planned"
    return "used" if row["used"] else "idle"


# A label that begins later does not fit before the end of the axis.
_LAST_MARK_PERCENT = 94.0


def ticks(window: Window) -> list[Row]:
    """Return the marks of the time axis: whole hours of a day, else midnights (UTC)."""
    is_day = window.end - window.begin <= timedelta(days=2)
    days = (window.end - window.begin) / timedelta(days=1)
    step = timedelta(hours=6) if is_day else timedelta(days=1 if days <= 8 else 7)
    at = window.begin.replace(hour=0, minute=0, second=0, microsecond=0)
    marks = []
    while at < window.end:
        if at >= window.begin and window.percent(at) <= _LAST_MARK_PERCENT:
            marks.append({"at": at, "left": window.percent(at), "is_day": not is_day})
        at += step
    return marks
