"""The only code that takes or gives back devices. PostgreSQL's triggers and checks refuse what it should not do."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import IntegrityError

from gpusched.lib.db.sql import as_json, columns, execute, query
from tenants.billing import ledger


@dataclass(frozen=True)
class RankAllocation:
    """One rank that is to run on a node; `devices`: (device id, memory in MiB or None for the whole device)."""

    attempt_id: int
    job_id: int
    number: int
    rank: int
    node_id: int
    cpu_milli: int
    memory_mb: int
    devices: tuple[tuple[int, int | None], ...]


_ASSIGN = """
    INSERT INTO nodes_assignment (attempt_id, job_id, number, rank, node_id, cpu_milli, memory_mb, device_ids, state,
                                  reason, detail)
    SELECT t.*, 'assigned', '', '' FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::int[], %s::bigint[],
                                               %s::int[], %s::bigint[], %s::jsonb[]) AS t
    RETURNING id, job_id, number, rank
"""
# Asked after the assignments are written: their foreign keys have waited for a removal that was under way.
_REMOVED = "SELECT name FROM nodes_node WHERE id = ANY(%s) AND removed_at IS NOT NULL LIMIT 1"
_ALLOCATE = """
    INSERT INTO nodes_allocation (assignment_id, device_id, memory_mb, since)
    SELECT t.*, clock_timestamp() FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS t
"""


def allocate(takings: Sequence[RankAllocation]) -> None:
    """Writes assignments and allocations. IntegrityError if a device would be held beyond what it has, or
    a node was removed."""
    if not takings:
        return
    rows = [
        (t.attempt_id, t.job_id, t.number, t.rank, t.node_id, t.cpu_milli, t.memory_mb,
         as_json([device for device, _ in t.devices]))
        for t in takings
    ]  # fmt: skip
    ids = {(row["job_id"], row["number"], row["rank"]): row["id"] for row in query(_ASSIGN, columns(rows, 8))}
    if removed := query(_REMOVED, [sorted({t.node_id for t in takings})]):
        raise IntegrityError(f"node {removed[0]['name']} was removed under the plan")
    holds = [(ids[t.job_id, t.number, t.rank], device, memory) for t in takings for device, memory in t.devices]
    if holds:
        execute(_ALLOCATE, columns(sorted(holds, key=lambda hold: hold[1]), 3))


_GIVE_BACK = """
    WITH freed AS (DELETE FROM nodes_allocation WHERE assignment_id = ANY(%s) RETURNING assignment_id, device_id)
    SELECT h.*, n.name AS node, s.ended_at, s.reason
      FROM freed f JOIN nodes_held h USING (assignment_id, device_id)  -- as it was when this statement began
      JOIN nodes_assignment s ON s.id = f.assignment_id JOIN nodes_node n ON n.id = h.node_id
"""


def release(assignment_ids: Sequence[int]) -> None:
    """Frees what ended assignments held and charges its use, from the start of the rank to its end."""
    charges = []
    for row in query(_GIVE_BACK, [list(assignment_ids)]):
        ended: datetime = row["ended_at"]
        charges.append(
            ledger.Charge(
                row["tenant_id"], row["user_id"], row["job_id"], row["attempt"], row["rank"], row["device_id"],
                row["node"], row["gpu_model"], row["memory_mb"], row["gpu_weight"], row["started_at"] or ended, ended,
                row["reason"],
            )
        )  # fmt: skip
    ledger.charge(charges)
