"""One node over time: allocations of its GPUs, incidents, and running jobs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from frontend.pages.node import rows as noderows
from gpusched.lib.db.sql import Row, query
from nodes import redaction

# The newest ranks of the time window; older ones are left out.
MAX_RANKS = 4000
# As parts of the window: touching bars narrower than this are merged.
_NARROW, _NEAR = 0.002, 0.001
# A narrower bar is no link: 24 pixels of a wide window is the smallest touch target.
_REACHABLE = 0.025

_RANKS = """
    SELECT s.job_id, s.number, s.rank, s.state, s.reason, s.device_ids, s.ended_at,
           coalesce(s.started_at, a.scheduled_at) AS began_at, j.name, j.tenant_id, t.name AS tenant
      FROM nodes_ranks s JOIN jobs_attempts a ON a.id = s.attempt_id JOIN jobs_all j ON j.id = s.job_id
      JOIN tenants_all t ON t.id = j.tenant_id JOIN nodes_all n ON n.id = s.node_id
     WHERE n.name = %s AND n.removed_at IS NULL AND (s.ended_at IS NULL OR s.ended_at > %s) ORDER BY s.id DESC LIMIT %s
"""


@dataclass(frozen=True)
class Window:
    """A time window."""

    begin: datetime
    end: datetime

    def part(self, moment: datetime) -> float:
        """Return the position of a moment in the window, 0 to 1."""
        span = (self.end - self.begin) / timedelta(seconds=1)
        return min(1.0, max(0.0, (moment - self.begin) / timedelta(seconds=1) / span))


def running(name: str, visible: Sequence[int] | None) -> list[Row]:
    """Return jobs with a rank on the node; hidden jobs have only their GPUs."""
    return [
        row if visible is None or row["tenant_id"] in visible else {"gpus": row["gpus"], "indices": row["indices"]}
        for row in noderows.running([name])
    ]


def device_lanes(
    name: str, devices: Iterable[Row], incidents: Iterable[Row], window: Window, visible: Sequence[int] | None
) -> list[Row]:
    """Return for each device its `spans` (allocations) and `gaps` (incidents of it or the node), with `left` and
    `width` in percent of the window. `incidents`: of the node."""
    ranks = query(_RANKS, [name, window.begin, MAX_RANKS])
    open_incidents = [row for row in incidents if row["until"] is None or row["until"] > window.begin]
    return [
        {
            "device": device,
            "spans": _merged([_span(row, window, visible) for row in ranks if device["id"] in _ids(row)]),
            "gaps": [_gap(row, window, visible) for row in open_incidents if row["device_id"] in (None, device["id"])],
        }
        for device in devices
    ]


def _ids(row: Row) -> Collection[int]:
    ids: Collection[int] = row["device_ids"]
    return ids


def _span(row: Row, window: Window, visible: Sequence[int] | None) -> Row:
    begin, end = window.part(row["began_at"]), window.part(row["ended_at"] or window.end)
    is_visible = visible is None or row["tenant_id"] in visible
    label = f"job {row['job_id']} {row['name']}, {row['tenant']}" if is_visible else "a job of another tenant"
    ending = "" if row["ended_at"] is None else f", ended: {row['reason'].replace('_', ' ')}"
    return {
        "begin": begin,
        "end": max(end, begin),
        "job_id": row["job_id"] if is_visible else None,
        "label": label + (ending if is_visible else ""),
        "is_bad": is_visible and row["reason"] not in ("", "exited"),
        "is_live": row["ended_at"] is None,
        "jobs": 1,
    }


def _gap(row: Row, window: Window, visible: Sequence[int] | None) -> Row:
    begin, end = window.part(row["since"]), window.part(row["until"] or window.end)
    kind = row["kind"].replace("_", " ")
    cause = redaction.redact_notes(row, visible)["cause"]
    label = f"{kind}: {cause}" if cause else kind
    return _placed({"begin": begin, "end": end, "label": label, "kind": row["kind"]})


def _merged(spans: list[Row]) -> list[Row]:
    """Sort spans by time and merge adjacent short ones, so that thousands of short jobs can be drawn."""
    merged: list[Row] = []
    for span in sorted(spans, key=lambda span: span["begin"]):
        last = merged[-1] if merged else None
        is_short = span["end"] - span["begin"] < _NARROW and not span["is_live"]
        if last and is_short and last["is_short"] and span["begin"] - last["end"] < _NEAR:
            last["end"] = max(last["end"], span["end"])
            last["jobs"] += 1
            last.update(job_id=None, label=f"{last['jobs']} short jobs", is_bad=last["is_bad"] or span["is_bad"])
        else:
            merged.append({**span, "is_short": is_short})
    return [_placed(span) for span in merged]


def _placed(row: Row) -> Row:
    width = max(row["end"] - row["begin"], 0.0)
    placed = {"left": f"{100 * row['begin']:.3f}", "width": f"{100 * width:.3f}"}
    return {**row, **placed, "is_reachable": width >= _REACHABLE}
