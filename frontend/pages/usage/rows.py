"""Usage of tenants by day, with held idle time and cost: rows, chart and CSV."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpusched.lib.db.sql import Row
from nodes.telemetry import samples
from tenants.billing import usage_report

BY = ("tenant", "user", "model")
# The number of keys with their own colour; the rest is summed.
MAX_IN_CHART = 7
OTHERS = "others"


@dataclass(frozen=True)
class Usage:
    """`rows`: by key, most use first, with `gpu_hours idle_gpu_hours used_gpu_hours idle_percent cost jobs`; `days`:
    all days of the period; `daily`: `gpu_hours idle_gpu_hours cost` by day and key."""

    rows: list[Row]
    total: Row
    days: list[str]
    daily: dict[tuple[str, str], Row]


def usage_rows(tenant_ids: Sequence[int], start: datetime, end: datetime, by: str) -> Usage:
    """Return usage by key. Allocation comes from the ledger, to the second; held idle time from samples, where
    counted."""
    report = usage_report.report(tenant_ids, start, end, by)
    first, last = start.astimezone(UTC).date(), (end - timedelta(microseconds=1)).astimezone(UTC).date()
    idle_rows = samples.held_gpu_seconds(tenant_ids, first, last, by)
    idle: dict[str, float] = {}
    daily: dict[tuple[str, str], Row] = {}
    for row in usage_report.daily(tenant_ids, start, end, by):
        cell = {"gpu_hours": round(row["gpu_seconds"] / 3600, 4), "idle_gpu_hours": 0.0, "cost": row["cost"]}
        daily[row["day"], row["key"]] = cell
    for row in idle_rows:
        idle[row["key"]] = idle.get(row["key"], 0.0) + row["idle_seconds"] / 3600
        none = {"gpu_hours": 0.0, "idle_gpu_hours": 0.0, "cost": 0.0}
        daily.setdefault((row["day"], row["key"]), none)["idle_gpu_hours"] = round(row["idle_seconds"] / 3600, 4)
    rows = sorted((_with_idle(row, idle.get(row["key"], 0.0)) for row in report.rows), key=lambda r: -r["gpu_hours"])
    days = [str(first + timedelta(days=number)) for number in range((last - first).days + 1)]
    return Usage(rows, _with_idle(report.total, sum(idle.values())), days, daily)


def _with_idle(row: Row, idle_hours: float) -> Row:
    """Add idle hours, capped by the ledger, which can lag the samples by seconds."""
    idle = min(idle_hours, row["gpu_hours"])
    return {
        **row,
        "idle_gpu_hours": round(idle, 4),
        "used_gpu_hours": round(row["gpu_hours"] - idle, 4),
        "idle_percent": round(100 * idle / row["gpu_hours"], 1) if row["gpu_hours"] else 0.0,
    }


def chart(usage: Usage, measure: str) -> Row:
    """Return `days` and `lines`: daily numbers of the first keys, and of all others together."""
    keys = [row["key"] for row in usage.rows]
    charted, others = keys[:MAX_IN_CHART], keys[MAX_IN_CHART:]
    lines = [{"label": key, "values": [_cell(usage, day, key, measure) for day in usage.days]} for key in charted]
    if others:
        sums = [round(sum(_cell(usage, day, key, measure) for key in others), 4) for day in usage.days]
        lines.append({"label": OTHERS, "values": sums})
    return {"days": usage.days, "lines": lines}


def _cell(usage: Usage, day: str, key: str, measure: str) -> float:
    row = usage.daily.get((day, key))
    return 0.0 if row is None else float(row[measure])
