"""Write a plan to the database in sets. A placement whose job changed meanwhile is skipped and counted."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec
from django.db import IntegrityError

from gpusched.lib.bus import events, wake
from gpusched.lib.db import locks
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import as_json, columns, prepared, retry_atomic
from gpusched.protocol.reasons import Pending
from jobs.arrays import materialize
from jobs.lifecycle import pending_reasons, states
from jobs.lifecycle.states import PlacementDecision
from nodes.allocation import allocations
from nodes.allocation.allocations import RankAllocation
from scheduling.cycle.late_bookings import LateBookings
from scheduling.cycle.pending_jobs import ShownReason
from scheduling.cycle.preemptions import preempt
from scheduling.cycle.snapshot import CommitBasis
from scheduling.engine.model import Node, PendingGroup, Placement, Plan, Snapshot, public_id
from scheduling.reservations import bookings
from scheduling.reservations.bookings import Start

# Their evidence is a time that was written with the code and is more exact than the engine's.
_TIMED = frozenset({Pending.NOT_BEFORE, Pending.RETRY_BACKOFF})

MAX_REASONS = 1000
_SHOWN = attrgetter("shown")


@dataclass(frozen=True)
class Committed:
    placed: int = 0
    stale: int = 0
    reasons_written: int = 0
    preempted: int = 0


def commit(plan: Plan, snapshot: Snapshot, basis: CommitBasis) -> Committed:
    """Write placements first, so that agents get them at once, then preemptions, then pending reasons."""
    placed = stale = 0
    if plan.placements:
        late = LateBookings(snapshot, plan.placements, basis.now)
        try:
            placed = retry_atomic(lambda: _place(plan.placements, snapshot, basis, late))
            stale = len(plan.placements) - placed
        except IntegrityError:
            # A placement that the database rejects (a device changed under the plan) must not affect the others.
            placed, stale = _one_by_one(plan.placements, snapshot, basis, late)
    preempted = preempt(plan, snapshot, {array.id for array in basis.arrays}) if plan.claims or snapshot.claims else 0
    return Committed(placed, stale, _write_reasons([*basis.pending_groups, *plan.waits], basis), preempted)


def _one_by_one(
    placements: Sequence[Placement], snapshot: Snapshot, basis: CommitBasis, late: LateBookings
) -> tuple[int, int]:
    placed = stale = 0
    for placement in placements:
        try:
            number = retry_atomic(lambda: _place([placement], snapshot, basis, late))  # noqa: B023
        except IntegrityError:
            number = 0
        placed, stale = placed + number, stale + 1 - number
    return placed, stale


def _place(placements: Sequence[Placement], snapshot: Snapshot, basis: CommitBasis, late: LateBookings) -> int:
    # Before anything is read: what is booked from now on sees these placements, and they see what was booked before.
    locks.acquire_in_transaction(Lock.RESERVATIONS, shared=True)
    nodes = {node.id: node for node in snapshot.nodes}
    if refused := late.without_room(placements):
        placements = [p for p in placements if p.job_id not in refused]
    placements = _with_elements(placements, basis)
    device_facts = _device_facts(placements)
    decided = [
        PlacementDecision(
            p.job_id,
            _attempt(p.job_id, basis),
            len(p.ranks),
            _represent_placement(p, nodes, device_facts),
            _represent_candidates(p, nodes, basis.policy.placement),
        )
        for p in placements
    ]
    attempts = states.place(decided)
    allocated = [
        RankAllocation(
            attempt_id=attempts[p.job_id][0],
            job_id=p.job_id,
            number=attempts[p.job_id][1],
            rank=rank.rank,
            node_id=rank.node_id,
            cpu_milli=rank.cpu_milli,
            memory_mb=rank.memory_mb,
            devices=tuple((hold.device_id, hold.memory_mb) for hold in rank.holds),
        )
        for p in placements
        if p.job_id in attempts
        for rank in p.ranks
    ]
    allocations.allocate(allocated)
    bookings.record_starts(
        [Start(p.job_id, attempts[p.job_id][1], p.booking_id) for p in placements if p.job_id in attempts],
        [(rank.job_id, device_id) for rank in allocated for device_id, _ in rank.devices],
    )
    if attempts:
        events.changed("assignments", {taking.node_id for taking in allocated})
        events.changed("jobs", attempts)
    return len(attempts)


def _with_elements(placements: Sequence[Placement], basis: CommitBasis) -> Sequence[Placement]:
    """Create jobs for placed array elements, which get their ids now. Drop elements for which their array has no
    capacity left."""
    ids = {array.id for array in basis.arrays}
    new, retried = Counter[int](), dict[int, set[int]]()
    for p in placements:
        if public_id(p.job_id) in ids:
            new[public_id(p.job_id)] += 1
        elif (array_id := basis.waiting[p.job_id].array_id) is not None:
            retried.setdefault(array_id, set()).add(p.job_id)
    if not new and not retried:
        return placements
    materialized = materialize.materialize(new, retried)
    placed = []
    for p in sorted(placements, key=lambda p: p.job_id):
        job_ids = materialized.created.get(public_id(p.job_id), [])
        if public_id(p.job_id) not in ids:
            placed += [p] if p.job_id not in materialized.refused else []
        elif job_ids:
            placed.append(replace(p, job_id=job_ids.pop(0)))
    return placed


def _attempt(job_id: int, basis: CommitBasis) -> int:
    """Return the attempt number of the job in the snapshot; 0 for an element that has just become a job."""
    return basis.waiting[job_id].attempt if job_id in basis.waiting else 0


def _device_facts(placements: Sequence[Placement]) -> dict[int, dict[str, Any]]:
    """Return index, UUID, model and memory of the devices in the placements, for the history. Raise IntegrityError if a
    device no longer exists."""
    ids = sorted({(hold.device_id,) for p in placements for rank in p.ranks for hold in rank.holds})
    sql = "SELECT id, index, uuid, model, memory_mb FROM nodes_devices WHERE id = ANY(%s::bigint[])"
    rows = prepared(sql, columns(ids, 1)) if ids else []
    if len(rows) < len(ids):
        raise IntegrityError("a device was retired, or its node removed, under the plan")
    return {row.pop("id"): row for row in rows}


def _represent_placement(
    p: Placement, nodes: dict[int, Node], device_facts: dict[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank.rank,
            "node": nodes[rank.node_id].name,
            "devices": [device_facts[hold.device_id] for hold in rank.holds],
        }
        for rank in p.ranks
    ]


def _represent_candidates(p: Placement, nodes: dict[int, Node], rule: str) -> dict[str, Any]:
    """Represent the candidates of a placement, with the nodes' present names."""
    if p.considered is None:
        return {}
    candidates = [
        {
            "node": nodes[candidate.node_id].name,
            "is_chosen": candidate.node_id == p.ranks[0].node_id,
            **candidate._asdict(),
        }
        for candidate in p.considered.candidates
    ]
    for candidate in candidates:
        del candidate["node_id"]
    return {"rule": rule, "nodes": p.considered.nodes, "room": p.considered.room, "candidates": candidates}


def _write_reasons(groups: Sequence[PendingGroup], basis: CommitBasis) -> int:
    """Write pending reasons, only when changed: codes at once, evidence alone now and then. At most MAX_REASONS per
    cycle, so that jobs that could start do not wait for the reasons of the others."""
    numbers: dict[tuple[str, str], int] = {}
    codes: list[tuple[int, int]] = []
    evidence: list[tuple[int, int]] = []
    for group in groups:
        if len(codes) > MAX_REASONS:
            break
        # An array shows the reason of its next element; it has no pending jobs for the others.
        waiting = list(filter(None, map(basis.waiting.get, group.job_ids)))
        changes = {shown: _change(group, shown, numbers, basis.evidence_is_due) for shown in set(map(_SHOWN, waiting))}
        if not any(changes.values()):
            continue
        for job in waiting:
            change = changes[job.shown]
            if change is not None:
                (evidence if change[0] else codes).append((job.job.id, change[1]))
    rows = (codes + evidence)[:MAX_REASONS]
    if not rows:
        return 0

    def write() -> int:
        written = pending_reasons.set_reasons(rows, list(numbers))
        events.changed("jobs", [job_id for job_id, _ in rows])
        if len(codes) > MAX_REASONS:
            wake.request_cycle()
        return written

    return retry_atomic(write)  # an action on several of these jobs may lock them in another order


def _change(
    group: PendingGroup, shown: ShownReason, numbers: dict[tuple[str, str], int], is_due: bool
) -> tuple[bool, int] | None:
    """Return whether the code of a job that shows this reason stays the same, and the number of what to write; None:
    nothing. `numbers`: of each code and evidence so far."""
    code = _new_code(shown.code, group)
    is_same = shown.code == code
    if is_same and (code in _TIMED or not is_due):
        return None
    text = as_json(group.evidence)
    if is_same and _same_json(text, shown.evidence):
        return None
    return is_same, numbers.setdefault((code, text), len(numbers))


def _new_code(present: str, group: PendingGroup) -> str:
    """Return the code to write. A job with `priority` keeps it while others are ahead: otherwise each job that ends and
    is replaced would change the reasons of the whole queue to `priority` for a cycle, and back to `capacity`."""
    is_behind = group.code == Pending.CAPACITY and bool(group.evidence.get("jobs_ahead"))
    return present if present == Pending.PRIORITY and is_behind else group.code


def _same_json(ours: str, stored: str) -> bool:
    """Return whether two JSON texts are equal. PostgreSQL has its own order of keys and spaces."""
    return ours == stored or bool(msgspec.json.decode(ours) == msgspec.json.decode(stored))
