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

# Changes that name a set, of which fewer may do.
OF_SETS = frozenset({"jobs_ended", "nodes_opened", "devices_well", "devices_cool"})
# Jobs and nodes, times plans, that one reduction may cost: a person waits for it.
_MAX_WORK = 200_000
_MIN_PLANS, _MAX_PLANS = 16, 40


class Cured(NamedTuple):
    """A change, the snapshot with it, and the plan of that."""

    change: Change
    snapshot: Snapshot
    plan: Plan


def smallest(
    snapshot: Snapshot,
    policy: Policy,
    now: float,
    job: Job,
    change: Change,
    is_wanted: Callable[[Plan], bool],
    *,
    starts: bool,
) -> Cured | None:
    """The change with an irreducible part of its set, with which the plan is still what is wanted; None: it was not
    found in as many plans as this may cost. `starts`: that the job starts is what is wanted."""
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
        return is_wanted(cured.plan)

    items = _ordered(snapshot, change)
    if starts:
        # What is needed for room alone is needed; in most cases it is enough, and costs one plan.
        needed = irreducible(items, fits)
        if needed and is_enough(needed):
            return tried[needed]
    found = irreducible(items, is_enough)
    return tried.get(found) if found else None


def plans_for(snapshot: Snapshot) -> int:
    """How many plans of it may be made to reduce one set."""
    return min(max(_MAX_WORK // (len(snapshot.jobs) + len(snapshot.nodes) + 1), _MIN_PLANS), _MAX_PLANS)


def _ordered(snapshot: Snapshot, change: Change) -> list[int]:
    """The ids of the set: the jobs that end first, and nodes that report, come first."""
    if change.change == "jobs_ended":
        ends = {one.job_id: inf if one.ends_by is None else one.ends_by for one in snapshot.running}
        return sorted(change.jobs, key=lambda id: (ends[id], id))
    is_away = {node.id: not node.is_online for node in snapshot.nodes}
    return sorted(change.ids, key=lambda id: (is_away.get(id, False), id))


def _part(snapshot: Snapshot, change: Change, part: Sequence[int]) -> Change:
    if change.change == "jobs_ended":
        return replace(change, to=len(part), jobs=tuple(part))
    wanted = set(part)
    if change.change == "nodes_opened":
        names = [node.name for node in snapshot.nodes if node.id in wanted]
    else:
        names = [node.name for node in snapshot.nodes if any(device.id in wanted for device in node.devices)]
    return replace(change, to=len(part), ids=tuple(part), names=tuple(sorted(names)))


def _room_check(snapshot: Snapshot, policy: Policy, job: Job, change: Change) -> Callable[[Sequence[int]], bool]:
    """Whether it would have room if nobody else waited; without that it does not start, so no plan is made."""
    if change.change == "jobs_ended":
        return Ends(snapshot, policy, job.request).give_room

    def fits(part: Sequence[int]) -> bool:
        changed = apply(snapshot, job.id, _part(snapshot, change, part))
        board = Board(changed.nodes, thermal=policy.thermal, running=changed.running)
        return place(board, Shape(job.request, board, policy)) is not None

    return fits
