"""Says which failures of ranks are faults of their devices: a GPU that fell off the bus fails what computes on it."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gpusched.lib.db.sql import columns, query
from gpusched.protocol import xids
from gpusched.protocol.agent_messages import Ended, Reading, Report
from gpusched.protocol.reasons import EndReason
from nodes.ranks.rank_end import parse_rank_key

_HELD = """
    SELECT s.node_id, s.job_id, s.number, s.rank, d.uuid, d.index, d.health, d.health_note,
           coalesce(extract(epoch FROM clock_timestamp() - s.started_at), 0)::float8 AS seconds
      FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[]) AS t (node_id, job_id, number, rank)
      JOIN nodes_assignment s ON s.job_id = t.job_id AND s.number = t.number AND s.rank = t.rank
                             AND s.node_id = t.node_id
      JOIN nodes_allocation a ON a.assignment_id = s.id JOIN nodes_device d ON d.id = a.device_id
     ORDER BY d.index
"""
# Of an agent's clock and the way of its message: what happened so long before a start may have been its own.
SLACK_SECONDS = 2
Row = dict[str, Any]


def attribute_faults(
    heard: Sequence[tuple[int, Report]], readings: Sequence[tuple[int, Reading]]
) -> list[tuple[int, Report]]:
    """The (node, report) pairs, failures of ranks whose device failed as faults of the node, others with the Xids that
    they caused. `readings` came with the reports, and are written later, because jobs are locked before devices."""
    failed = [(node_id, *key) for node_id, report in heard if _failed(report) and (key := parse_rank_key(report.key))]
    if not failed:
        return list(heard)
    looks = {(node_id, reading.uuid): reading for node_id, reading in readings}
    held: dict[tuple[int, str], list[Row]] = {}
    for row in query(_HELD, columns(failed, 4)):
        held.setdefault((row["node_id"], f"{row['job_id']}.{row['number']}.{row['rank']}"), []).append(row)
    return [(node_id, _told(report, held.get((node_id, report.key), []), looks)) for node_id, report in heard]


def _failed(report: Report) -> bool:
    """By itself: not stopped by us, nor by a fault that is known already."""
    if not isinstance(report, Ended):
        return False
    return report.reason == EndReason.SIGNALLED or (report.reason == EndReason.EXITED and report.exit_code != 0)


def _told(report: Report, devices: Sequence[Row], looks: Mapping[tuple[int, str], Reading]) -> Report:
    if not isinstance(report, Ended):
        return report
    notes = []
    for row in devices:
        look = looks.get((row["node_id"], row["uuid"]))
        codes = _codes(look, row["seconds"] + SLACK_SECONDS)
        if fault := _fault(row, look, codes):
            return replace(report, reason=str(EndReason.NODE_FAULT), detail=f"GPU {row['index']} {fault}")
        notes += [f"GPU {row['index']}: {xids.sentence(code)}" for code in codes if code in xids.APPLICATION]
    return replace(report, detail="; ".join(filter(None, [report.detail, *notes]))) if notes else report


def _codes(look: Reading | None, seconds: float) -> list[int]:
    """The Xids of the last seconds, each once."""
    return sorted({xid.code for xid in look.xids if 0 <= xid.seconds_ago <= seconds}) if look else []


def _fault(row: Row, look: Reading | None, codes: Sequence[int]) -> str:
    """What failed of a device; empty if nothing did."""
    if hardware := [code for code in codes if code in xids.HARDWARE]:
        return f"failed: {xids.sentence(hardware[0])}"
    if row["health"] == "degraded":
        return f"failed: {row['health_note']}"
    return "was lost" if row["health"] == "lost" or (look is not None and look.lost) else ""
