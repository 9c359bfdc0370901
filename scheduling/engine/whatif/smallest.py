"""Reduces a change of many jobs, nodes or devices to those that a waiting job needs, by planning with fewer of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from scheduling.engine.board.board import Board
from scheduling.engine.board.shapes import Shape
from scheduling.engine.explain.irreducible import OutOfTries, irreducible
from scheduling.engine.model import Job, Plan, Policy, Snapshot
from scheduling.engine.placement.placement import place
from scheduling.engine.planner import plan
from scheduling.engine.whatif.changes import Change, apply
from scheduling.engine.whatif.ends import Ends

# Changes of a set, of which a part may suffice.
OF_SETS = frozenset({"jobs_ended", "nodes_opened", "devices_well", "devices_cool"})
# Jobs and nodes, times plans, that one reduction may cost: a person waits for it.
_MAX_WORK = 200_000
_MIN_PLANS, _MAX_PLANS = 16, 40


class Cured(NamedTuple):
    """A change, the snapshot with it, and the plan of that snapshot."""

    change: Change
    snapshot: Snapshot
    plan: Plan


def smallest(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    job: Job,
    change: Change,
    is_accepted: Callable[[Plan], bool],
    *,
    starts: bool,
) -> Cured | None:
    """Return the change with an irreducible part of its set whose plan is still accepted; None: it was not found in
    as many plans as this may cost. `starts`: a plan is accepted if the job starts."""
    tried: dict[tuple[int, ...], Cured] = {}
    plans = plans_for(snapshot)

    fits = _room_check(snapshot, policy, job, change)

    def is_enough(part: Sequence[int]) -> bool:
        if starts and not fits(part):
            return False
        nonlocal plans
        if not plans:
            raise OutOfTries
        plans -= 1
        reduced = _part(snapshot, change, part)
        changed = apply(snapshot, job.id, reduced)
        cured = tried[tuple(part)] = Cured(reduced, changed, plan(changed, policy, now))
        return is_accepted(cured.plan)

    items = _ordered(snapshot, change)
    if starts:
        # The items that the job needs in order to fit are needed; mostly they suffice, at the cost of one plan.
        needed = irreducible(items, fits)
        if needed and is_enough(needed):
            return tried[needed]
    part_needed = irreducible(items, is_enough)
    return tried.get(part_needed) if part_needed else None


def plans_for(snapshot: Snapshot) -> int:
    """Return how many plans of the snapshot may be made to reduce one set."""
    return min(max(_MAX_WORK // (len(snapshot.jobs) + len(snapshot.nodes) + 1), _MIN_PLANS), _MAX_PLANS)


def _ordered(snapshot: Snapshot, change: Change) -> list[int]:
    """Return the ids of the set: the jobs that end first, and nodes that report, come first."""
    if change.change == "jobs_ended":
        ends = {job.job_id: inf if job.ends_by is None else job.ends_by for job in snapshot.running}
        return sorted(change.jobs, key=lambda id: (ends[id], id))
    is_away = {node.id: not node.is_online for node in snapshot.nodes}
    return sorted(change.ids, key=lambda id: (is_away.get(id, False), id))


def _part(snapshot: Snapshot, change: Change, part: Sequence[int]) -> Change:
    if change.change == "jobs_ended":
        return replace(change, to=len(part), jobs=tuple(part))
    ids = set(part)
    if change.change == "nodes_opened":
        names = [node.name for node in snapshot.nodes if node.id in ids]
    else:
        names = [node.name for node in snapshot.nodes if any(device.id in ids for device in node.devices)]
    return replace(change, to=len(part), ids=tuple(part), names=tuple(sorted(names)))


def _room_check(snapshot: Snapshot, policy: Policy, job: Job, change: Change) -> Callable[[Sequence[int]], bool]:
    """Return a check whether the job would fit if no other job waited; if not, no plan is needed."""
    if change.change == "jobs_ended":
        return Ends(snapshot, policy, job.request).make_room

    def fits(part: Sequence[int]) -> bool:
        changed = apply(snapshot, job.id, _part(snapshot, change, part))
        board = Board(changed.nodes, thermal=policy.thermal, running=changed.running)
        return place(board, Shape(job.request, board, policy)) is not None

    return fits
