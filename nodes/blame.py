"""Says which failures of ranks are faults of their devices: a GPU that fell off the bus fails what computes on it."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from gpusched.lib.sql import columns, query
from gpusched.protocol.messages import Ended, Report
from gpusched.protocol.reasons import EndReason
from nodes.reports import parse_key

_HELD = """
    SELECT s.node_id, s.job_id, s.number, s.rank, d.uuid, d.index, d.health, d.health_note
      FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[]) AS t (node_id, job_id, number, rank)
      JOIN nodes_assignment s ON s.job_id = t.job_id AND s.number = t.number AND s.rank = t.rank
                             AND s.node_id = t.node_id
      JOIN nodes_allocation a ON a.assignment_id = s.id JOIN nodes_device d ON d.id = a.device_id
     ORDER BY d.index
"""


def judged(heard: Sequence[tuple[int, Report]], lost: Iterable[tuple[int, str]]) -> list[tuple[int, Report]]:
    """The (node, report) pairs, failures of ranks whose device failed as faults of the node. `lost`: (node, UUID) of
    devices that the same messages call lost; they are written later, because jobs are locked before devices."""
    failed = [(node_id, *key) for node_id, report in heard if _failed(report) and (key := parse_key(report.key))]
    if not failed:
        return list(heard)
    gone = set(lost)
    faults = {}
    for row in query(_HELD, columns(failed, 4)):
        if row["health"] in ("lost", "degraded") or (row["node_id"], row["uuid"]) in gone:
            faults[row["node_id"], f"{row['job_id']}.{row['number']}.{row['rank']}"] = _detail(row)
    return [(node_id, _blamed(report, faults.get((node_id, report.key)))) for node_id, report in heard]


def _failed(report: Report) -> bool:
    """By itself: not stopped by us, nor by a fault that is known already."""
    if not isinstance(report, Ended):
        return False
    return report.reason == EndReason.SIGNALLED or (report.reason == EndReason.EXITED and report.exit_code != 0)


def _detail(row: dict[str, Any]) -> str:
    what = row["health_note"] if row["health"] == "degraded" else ""
    return f"GPU {row['index']} failed: {what}" if what else f"GPU {row['index']} was lost"


def _blamed(report: Report, detail: str | None) -> Report:
    if detail is None or not isinstance(report, Ended):
        return report
    return replace(report, reason=str(EndReason.NODE_FAULT), detail=detail)
