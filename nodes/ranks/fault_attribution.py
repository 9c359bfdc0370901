"""Attribute failures of ranks to their devices: a GPU that fell off the bus fails the rank that computes on it."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from gpusched.lib.db.sql import Row, columns, query
from gpusched.protocol import xids
from gpusched.protocol.agent_messages import Ended, Reading, Report, parse_rank_key
from gpusched.protocol.reasons import EndReason

_DEVICES = """
    SELECT s.node_id, s.job_id, s.number, s.rank, d.uuid, d.index, d.health, d.health_note,
           coalesce(extract(epoch FROM clock_timestamp() - s.started_at), 0)::float8 AS seconds
      FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[]) AS t (node_id, job_id, number, rank)
      JOIN nodes_assignment s ON s.job_id = t.job_id AND s.number = t.number AND s.rank = t.rank
                             AND s.node_id = t.node_id
      JOIN nodes_allocation a ON a.assignment_id = s.id JOIN nodes_device d ON d.id = a.device_id
     ORDER BY d.index
"""
# Covers the agent's clock and the latency of its message: an Xid this long before the start may be the rank's own.
SLACK_SECONDS = 2


def attribute_faults(
    reports: Sequence[tuple[int, Report]], readings: Sequence[tuple[int, Reading]]
) -> list[tuple[int, Report]]:
    """Return the (node, report) pairs. The failure of a rank whose device failed becomes a node fault; other failures
    name the Xids that they caused. `readings` came with the reports and are written later, because jobs are locked
    before devices."""
    failed = [(node_id, *key) for node_id, report in reports if _failed(report) and (key := parse_rank_key(report.key))]
    if not failed:
        return list(reports)
    readings_of = {(node_id, reading.uuid): reading for node_id, reading in readings}
    devices_of: dict[tuple[int, str], list[Row]] = {}
    for row in query(_DEVICES, columns(failed, 4)):
        devices_of.setdefault((row["node_id"], f"{row['job_id']}.{row['number']}.{row['rank']}"), []).append(row)
    return [
        (node_id, _attribute(report, devices_of.get((node_id, report.key), []), readings_of))
        for node_id, report in reports
    ]


def _failed(report: Report) -> bool:
    """Return whether a rank failed by itself: not stopped by the scheduler, nor by a fault already attributed."""
    if not isinstance(report, Ended):
        return False
    return report.reason == EndReason.SIGNALLED or (report.reason == EndReason.EXITED and report.exit_code != 0)


def _attribute(report: Report, devices: Sequence[Row], readings_of: Mapping[tuple[int, str], Reading]) -> Report:
    if not isinstance(report, Ended):
        return report
    notes = []
    for row in devices:
        reading = readings_of.get((row["node_id"], row["uuid"]))
        codes = _codes(reading, row["seconds"] + SLACK_SECONDS)
        if fault := _fault(row, reading, codes):
            return replace(report, reason=str(EndReason.NODE_FAULT), detail=f"GPU {row['index']} {fault}")
        notes += [f"GPU {row['index']}: {xids.sentence(code)}" for code in codes if code in xids.APPLICATION]
    return replace(report, detail="; ".join(filter(None, [report.detail, *notes]))) if notes else report


def _codes(reading: Reading | None, seconds: float) -> list[int]:
    """Return the distinct Xids of the last `seconds`."""
    return sorted({xid.code for xid in reading.xids if 0 <= xid.seconds_ago <= seconds}) if reading else []


def _fault(row: Row, reading: Reading | None, codes: Sequence[int]) -> str:
    """Describe the failure of a device; empty if it did not fail."""
    if hardware := [code for code in codes if code in xids.HARDWARE]:
        return f"failed: {xids.sentence(hardware[0])}"
    if row["health"] == "degraded":
        return f"failed: {row['health_note']}"
    return "was lost" if row["health"] == "lost" or (reading is not None and reading.lost) else ""
