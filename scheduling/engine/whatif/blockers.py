"""Finds the jobs whose end the estimated start of a waiting job depends on."""

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
    """A job whose end is needed, by its public id."""

    job_id: int
    tenant_id: int


def blockers(start: Start, job_id: int, policy: Policy) -> tuple[Blocker, ...] | None:
    """Return an irreducible set of jobs that ended before the job started, in the order of their ends: if any one of
    them still ran, and all others that are not in the set, the job would not start then. None: unknown.

    A job whose place another one has taken since is left out: only the other one counts.
    """
    snapshot, now = start.snapshot, start.now
    [job] = [waiting for waiting in snapshot.jobs if waiting.id == job_id]
    plans = plans_for(snapshot)
    ended_jobs = restorable(snapshot, start.ended)

    def still_running(removed: Sequence[RunningJob]) -> Snapshot:
        ended = {job.job_id for job in removed}
        return restored(snapshot, [_unended(job, now) for job in ended_jobs if job.job_id not in ended])

    ends = Ends(still_running(()), policy, job.request)

    def fits(part: Sequence[RunningJob]) -> bool:
        return ends.make_room([job.job_id for job in part])

    def is_enough(part: Sequence[RunningJob]) -> bool:
        if not fits(part):
            return False
        nonlocal plans
        if not plans:
            raise OutOfTries
        plans -= 1
        new_plan = plan(still_running(part), policy, now)
        return any(placement.job_id == job_id for placement in new_plan.placements)

    needed = irreducible(ended_jobs, fits)
    if not needed or not is_enough(needed):
        needed = irreducible(ended_jobs, is_enough)
    return None if needed is None else tuple(Blocker(public_id(job.job_id), job.tenant_id) for job in needed)


def _unended(job: RunningJob, now: float) -> RunningJob:
    return job if job.ends_by is None else replace(job, ends_by=max(job.ends_by, now + 1))


def restorable(snapshot: Snapshot, ended: Sequence[RunningJob]) -> list[RunningJob]:
    """Return the jobs that could all still run beside the running ones, in the order of their ends; later ends go
    first."""
    nodes = {node.id: node for node in snapshot.nodes}
    present = {running.job_id for running in snapshot.running} | {waiting.id for waiting in snapshot.jobs}
    restorable_jobs: list[RunningJob] = []
    for job in reversed(ended):
        if job.job_id in present or not all(rank.node_id in nodes for rank in job.ranks):
            continue
        places = [nodes[rank.node_id] for rank in job.ranks]
        [*after] = restored(replace(snapshot, nodes=_once(places), running=()), [job]).nodes
        if _has_place(job, nodes, after):
            nodes.update({node.id: node for node in after})
            present.add(job.job_id)
            restorable_jobs.append(job)
    return restorable_jobs[::-1]


def _once(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple({node.id: node for node in nodes}.values())


def _has_place(job: RunningJob, nodes: Mapping[int, Node], after: Iterable[Node]) -> bool:
    if any(node.cpu_milli_free < 0 or node.memory_mb_free < 0 for node in after):
        return False
    devices = {device.id: device for rank in job.ranks for device in nodes[rank.node_id].devices}
    holds = [hold for rank in job.ranks for hold in rank.holds]
    return all(
        not devices[hold.device_id].exclusive
        and (
            not devices[hold.device_id].shared_mb
            if hold.memory_mb is None
            else devices[hold.device_id].shared_mb + hold.memory_mb <= (devices[hold.device_id].memory_mb or 0)
        )
        for hold in holds
    )
