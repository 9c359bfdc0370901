"""Plan → database, set by set. A placement whose job changed meanwhile is skipped and counted; the rest is written."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from django.db import IntegrityError, transaction

from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import as_json, columns, query, retry_atomic
from gpusched.protocol.reasons import Pending
from jobs.arrays import materialize
from jobs.lifecycle import pending_reasons, states
from jobs.lifecycle.states import PlacementDecision
from nodes.allocation import allocations
from nodes.allocation.allocations import RankAllocation
from scheduling.cycle.preemptions import preempt
from scheduling.cycle.snapshot import CommitBasis
from scheduling.engine.model import Node, PendingGroup, Placement, Plan, Snapshot, public_id

# Their evidence is a time that was written with the code and knows more than the engine does.
_TIMED = frozenset({Pending.NOT_BEFORE, Pending.RETRY_BACKOFF})

MAX_REASONS = 1000


@dataclass(frozen=True)
class Committed:
    placed: int = 0
    stale: int = 0
    reasons_written: int = 0
    preempted: int = 0


def commit(plan: Plan, snapshot: Snapshot, seen: CommitBasis) -> Committed:
    """Writes placements first, so that their agents hear at once, then who is to stop for whom, then reasons."""
    placed = stale = 0
    if plan.placements:
        try:
            placed = retry_atomic(lambda: _place(plan.placements, snapshot, seen))
            stale = len(plan.placements) - placed
        except IntegrityError:
            # One placement that the database refuses (a device changed under the plan) must not spoil the others.
            placed, stale = _one_by_one(plan.placements, snapshot, seen)
    preempted = preempt(plan, snapshot, {array.id for array in seen.arrays}) if plan.claims or snapshot.claims else 0
    return Committed(placed, stale, _write_reasons([*seen.waits, *plan.waits], seen), preempted)


def _one_by_one(placements: Sequence[Placement], snapshot: Snapshot, seen: CommitBasis) -> tuple[int, int]:
    placed = stale = 0
    for placement in placements:
        try:
            done = retry_atomic(lambda: _place([placement], snapshot, seen))  # noqa: B023
        except IntegrityError:
            done = 0
        placed, stale = placed + done, stale + 1 - done
    return placed, stale


def _place(placements: Sequence[Placement], snapshot: Snapshot, seen: CommitBasis) -> int:
    nodes = {node.id: node for node in snapshot.nodes}
    placements = _with_elements(placements, seen)
    device_facts = _device_facts(placements)
    decided = [
        PlacementDecision(
            p.job_id,
            _attempt(p.job_id, seen),
            len(p.ranks),
            _as_history(p, nodes, device_facts),
            _as_told(p, nodes, seen.policy.placement),
        )
        for p in placements
    ]
    made = states.place(decided)
    takings = [
        RankAllocation(
            attempt_id=made[p.job_id][0],
            job_id=p.job_id,
            number=made[p.job_id][1],
            rank=rank.rank,
            node_id=rank.node_id,
            cpu_milli=rank.cpu_milli,
            memory_mb=rank.memory_mb,
            devices=tuple((hold.device_id, hold.memory_mb) for hold in rank.holds),
        )
        for p in placements
        if p.job_id in made
        for rank in p.ranks
    ]
    allocations.allocate(takings)
    if made:
        events.changed("assignments", {taking.node_id for taking in takings})
        events.changed("jobs", made)
    return len(made)


def _with_elements(placements: Sequence[Placement], seen: CommitBasis) -> Sequence[Placement]:
    """Makes jobs of the elements of arrays that are placed, which get their ids now; without those that their array has
    no room for any more."""
    ids = {array.id for array in seen.arrays}
    new, again = Counter[int](), dict[int, set[int]]()
    for p in placements:
        if public_id(p.job_id) in ids:
            new[public_id(p.job_id)] += 1
        elif (array_id := seen.waiting[p.job_id].array_id) is not None:
            again.setdefault(array_id, set()).add(p.job_id)
    if not new and not again:
        return placements
    taken = materialize.materialize(new, again)
    found = []
    for p in sorted(placements, key=lambda p: p.job_id):
        made = taken.created.get(public_id(p.job_id), [])
        if public_id(p.job_id) not in ids:
            found += [p] if p.job_id not in taken.refused else []
        elif made:
            found.append(replace(p, job_id=made.pop(0)))
    return found


def _attempt(job_id: int, seen: CommitBasis) -> int:
    """That the job was seen at; an element that is a job from now on had none."""
    return seen.waiting[job_id].attempt if job_id in seen.waiting else 0


def _device_facts(placements: Sequence[Placement]) -> dict[int, dict[str, Any]]:
    """Index, UUID, model and memory of the devices that are placed on, for the history. IntegrityError if one of them
    no longer exists."""
    ids = sorted({(hold.device_id,) for p in placements for rank in p.ranks for hold in rank.holds})
    sql = "SELECT id, index, uuid, model, memory_mb FROM nodes_devices WHERE id = ANY(%s::bigint[])"
    rows = query(sql, columns(ids, 1)) if ids else []
    if len(rows) < len(ids):
        raise IntegrityError("a device was retired, or its node removed, under the plan")
    return {row.pop("id"): row for row in rows}


def _as_history(p: Placement, nodes: dict[int, Node], device_facts: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank.rank,
            "node": nodes[rank.node_id].name,
            "devices": [device_facts[hold.device_id] for hold in rank.holds],
        }
        for rank in p.ranks
    ]


def _as_told(p: Placement, nodes: dict[int, Node], rule: str) -> dict[str, Any]:
    """What was considered, with the names that the nodes had then."""
    if p.considered is None:
        return {}
    told = [
        {"node": nodes[one.node_id].name, "is_chosen": one.node_id == p.ranks[0].node_id, **one._asdict()}
        for one in p.considered.candidates
    ]
    for one in told:
        del one["node_id"]
    return {"rule": rule, "nodes": p.considered.nodes, "room": p.considered.room, "candidates": told}


def _write_reasons(waits: Sequence[PendingGroup], seen: CommitBasis) -> int:
    """Only what changed: the code at once, evidence alone now and then. So many at a time; then another cycle, so that
    jobs that could start do not wait until everybody has been told why they cannot."""
    said: dict[tuple[str, str], int] = {}
    codes: list[tuple[int, int]] = []
    evidence: list[tuple[int, int]] = []
    for wait in waits:
        if len(codes) > MAX_REASONS:
            break
        text = ""
        for job_id in wait.job_ids:
            shown = seen.waiting.get(job_id)
            if shown is None:
                continue  # an array has the reason of its next element
            code = _kept(shown.reason, wait)
            is_same = shown.reason == code
            if is_same and (code in _TIMED or not seen.evidence_is_due):
                continue
            text = text or as_json(wait.evidence)
            if not is_same or not _same_json(text, shown.evidence):
                number = said.setdefault((code, text), len(said))
                (evidence if is_same else codes).append((job_id, number))
    rows = (codes + evidence)[:MAX_REASONS]
    if not rows:
        return 0
    with transaction.atomic():
        written = pending_reasons.set_reasons(rows, list(said))
        events.changed("jobs", [job_id for job_id, _ in rows])
        if len(codes) > MAX_REASONS:
            wake.request_cycle()
    return written


def _kept(shown: str, wait: PendingGroup) -> str:
    """Whom others overtook waits for its turn as long as others wait before it: else each job that ends and is followed
    by another would turn the reasons of the whole queue to `priority` for one cycle, and back to `capacity`."""
    is_behind = wait.code == Pending.CAPACITY and bool(wait.evidence.get("jobs_ahead"))
    return shown if shown == Pending.PRIORITY and is_behind else wait.code


def _same_json(ours: str, stored: str) -> bool:
    """Whether two JSON texts say the same; PostgreSQL orders keys and spaces in its own way."""
    return ours == stored or bool(msgspec.json.decode(ours) == msgspec.json.decode(stored))
