"""Names the jobs whose end the estimated start of a waiting job depends on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from scheduling.engine.explain.irreducible import OutOfTries, irreducible
from scheduling.engine.forward import restored
from scheduling.engine.model import Node, Policy, RunningJob, Snapshot, public_id
from scheduling.engine.planner import plan
from scheduling.engine.whatif.ends import Ends
from scheduling.engine.whatif.estimate import Start
from scheduling.engine.whatif.smallest import plans_for


class Blocker(NamedTuple):
    """A job whose end is needed, by the id that people know it by."""

    job_id: int
    tenant_id: int


def blockers(start: Start, job_id: int, policy: Policy) -> tuple[Blocker, ...] | None:
    """An irreducible set of jobs that ended before the job started, in the order of their ends: if any one of them
    still ran, and all others that are not in the set, the job would not start then. None: that was not found out.

    A job whose place another one has taken since is left out: what the other one holds, or held, is what counts.
    """
    snapshot, now = start.snapshot, start.now
    [job] = [one for one in snapshot.jobs if one.id == job_id]
    plans = plans_for(snapshot)
    gone = restorable(snapshot, start.ended)

    def still_running(kept: Sequence[RunningJob]) -> Snapshot:
        ended = {one.job_id for one in kept}
        return restored(snapshot, [_unended(one, now) for one in gone if one.job_id not in ended])

    ends = Ends(still_running(()), policy, job.request)

    def fits(part: Sequence[RunningJob]) -> bool:
        return ends.give_room([one.job_id for one in part])

    def is_enough(part: Sequence[RunningJob]) -> bool:
        if not fits(part):
            return False
        nonlocal plans
        if not plans:
            raise OutOfTries
        plans -= 1
        made = plan(still_running(part), policy, now)
        return any(placement.job_id == job_id for placement in made.placements)

    needed = irreducible(gone, fits)
    if not needed or not is_enough(needed):
        needed = irreducible(gone, is_enough)
    return None if needed is None else tuple(Blocker(public_id(one.job_id), one.tenant_id) for one in needed)


def _unended(one: RunningJob, now: float) -> RunningJob:
    return one if one.ends_by is None else replace(one, ends_by=max(one.ends_by, now + 1))


def restorable(snapshot: Snapshot, ended: Sequence[RunningJob]) -> list[RunningJob]:
    """Those that could all still run beside what runs now, the latest that ended first; in the order of their ends."""
    nodes = {node.id: node for node in snapshot.nodes}
    running = {one.job_id for one in snapshot.running} | {one.id for one in snapshot.jobs}
    found: list[RunningJob] = []
    for one in reversed(ended):
        if one.job_id in running or not all(rank.node_id in nodes for rank in one.ranks):
            continue
        places = [nodes[rank.node_id] for rank in one.ranks]
        [*after] = restored(replace(snapshot, nodes=_once(places), running=()), [one]).nodes
        if _has_place(one, nodes, after):
            nodes.update({node.id: node for node in after})
            running.add(one.job_id)
            found.append(one)
    return found[::-1]


def _once(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple({node.id: node for node in nodes}.values())


def _has_place(one: RunningJob, before: Mapping[int, Node], after: Iterable[Node]) -> bool:
    if any(node.cpu_milli_free < 0 or node.memory_mb_free < 0 for node in after):
        return False
    devices = {device.id: device for rank in one.ranks for device in before[rank.node_id].devices}
    holds = [hold for rank in one.ranks for hold in rank.holds]
    return all(
        not devices[hold.device_id].exclusive
        and (
            not devices[hold.device_id].shared_mb
            if hold.memory_mb is None
            else devices[hold.device_id].shared_mb + hold.memory_mb <= (devices[hold.device_id].memory_mb or 0)
        )
        for hold in holds
    )
