"""Allocate and release devices; no other code does. PostgreSQL's triggers and checks reject invalid allocations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError

from gpusched.lib.db.sql import as_json, columns, prepared


@dataclass(frozen=True)
class RankAllocation:
    """A rank placed on a node. `devices`: (device id, memory in MiB or None for the whole device)."""

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
# Run after the INSERT of the assignments: its foreign keys waited for any change of the nodes that was in progress.
_CLOSED = "SELECT name FROM nodes_node WHERE id = ANY(%s) AND (removed_at IS NOT NULL OR intent <> 'open') LIMIT 1"
_ALLOCATE = """
    INSERT INTO nodes_allocation (assignment_id, device_id, memory_mb, since)
    SELECT t.*, clock_timestamp() FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS t
"""
# Run after the INSERT of the allocations: their trigger waited for any change of the devices that was in progress.
_OUT_OF_SERVICE = "SELECT id, health FROM nodes_device WHERE id = ANY(%s) AND health NOT IN ('ok', 'hot') LIMIT 1"


def allocate(ranks: Sequence[RankAllocation]) -> None:
    """Write assignments and allocations. Raise IntegrityError if a device would exceed its capacity or is out of
    service, or if a node was closed or removed."""
    if not ranks:
        return
    rows = [
        (t.attempt_id, t.job_id, t.number, t.rank, t.node_id, t.cpu_milli, t.memory_mb,
         as_json([device for device, _ in t.devices]))
        for t in ranks
    ]  # fmt: skip
    ids = {(row["job_id"], row["number"], row["rank"]): row["id"] for row in prepared(_ASSIGN, columns(rows, 8))}
    if closed := prepared(_CLOSED, [sorted({t.node_id for t in ranks})]):
        raise IntegrityError(f"node {closed[0]['name']} was closed or removed under the plan")
    holds = [(ids[t.job_id, t.number, t.rank], device, memory) for t in ranks for device, memory in t.devices]
    if holds:
        prepared(_ALLOCATE, columns(sorted(holds, key=lambda hold: hold[1]), 3))
        if lost := prepared(_OUT_OF_SERVICE, [sorted({device for _, device, _ in holds})]):
            raise IntegrityError(f"device {lost[0]['id']} became {lost[0]['health']} under the plan")


_RELEASE = """
    WITH freed AS (DELETE FROM nodes_allocation WHERE assignment_id = ANY(%s) RETURNING assignment_id, device_id)
    SELECT h.*, n.name AS node, s.ended_at, s.reason
      FROM freed f JOIN nodes_held h USING (assignment_id, device_id)  -- as of the start of this statement
      JOIN nodes_assignment s ON s.id = f.assignment_id JOIN nodes_node n ON n.id = h.node_id
"""


def release(assignment_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Free what ended assignments held. Return the rows of `nodes_held` that are gone, with how their ranks ended."""
    return prepared(_RELEASE, [list(assignment_ids)])
