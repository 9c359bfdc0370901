"""Says what would have to be different for a waiting job to start, proved by planning again with that difference."""

from collections.abc import Iterator
from typing import NamedTuple

from scheduling.engine.board.board import Board
from scheduling.engine.model import Job, Plan, Policy, Reason, Snapshot
from scheduling.engine.planner import plan
from scheduling.engine.whatif.changes import Change, apply
from scheduling.engine.whatif.remedies import remedies
from scheduling.engine.whatif.smallest import OF_SETS, Cured, smallest

# Changes that the owner of a job can make to it, without anybody else.
JOB_CHANGES = frozenset(
    {
        "gpu_count", "gpu_memory_mb", "gpu_model", "cpu_cores", "memory_mb", "cpu_and_memory_percent",
        "gang_scheduling", "ranks", "node_selector", "node_affinity", "tolerations", "topology", "apart",
        "max_runtime_seconds", "workload_class",
    }
)  # fmt: skip
# One reason is followed by at most so many others, and each is tried to be cured in at most so many ways.
MAX_STEPS, MAX_TRIES = 5, 8


class Step(NamedTuple):
    """A reason that a job waits, and the change that makes it start or leaves it with another reason; None: none
    that could be proved. `starts`: with this change, and those of the steps before, it starts."""

    reason: Reason
    change: Change | None
    starts: bool


def obstacles(snapshot: Snapshot, policy: Policy, now: float, job_id: int, made: Plan | None = None) -> list[Step]:
    """The dominant reason of a waiting job, and then what would still stop it if that were cured, one after the other.

    Empty: it starts in this cycle, or does not wait. Every step costs a plan of the whole snapshot for each try.
    `made`: the plan of this snapshot, where it is known already.
    """
    steps: list[Step] = []
    known: set[str] = set()
    made = made or plan(snapshot, policy, now)
    while len(steps) < MAX_STEPS:
        reason = made.reason_of(job_id)
        if reason is None or reason.code in known:
            break
        known.add(reason.code)
        found = _cure(snapshot, policy, now, made, reason)
        if found is None:
            steps.append(Step(reason, None, False))
            break
        change, snapshot, made = found
        steps.append(Step(reason, change, _starts(made, job_id)))
    return steps


def alternatives(
    snapshot: Snapshot, policy: Policy, now: float, job_id: int, most: int = 3, made: Plan | None = None
) -> list[Change]:
    """Changes of the job itself with which it would start now, each by itself; at most `most` of them. `made` as in
    `obstacles`."""
    made = made or plan(snapshot, policy, now)
    reason = made.reason_of(job_id)
    if reason is None:
        return []
    found: list[Change] = []
    job = _job(snapshot, job_id)
    ways = (change for change in _ways(snapshot, policy, now, made, job, reason) if change.change in JOB_CHANGES)
    for _, change in zip(range(2 * most), ways, strict=False):
        if len(found) < most and _starts(plan(apply(snapshot, job_id, change), policy, now), job_id):
            found.append(change)
    return found


def _cure(snapshot: Snapshot, policy: Policy, now: float, made: Plan, reason: Reason) -> Cured | None:
    """The first change that makes the job start; else the first that leaves it with another reason. Of a set of jobs,
    nodes or devices no more is named than is needed for that."""
    job = _job(snapshot, reason.job_id)

    def reduced(cured: Cured) -> Cured | None:
        if cured.change.change not in OF_SETS:
            return cured
        if _starts(cured.plan, job.id):
            return smallest(snapshot, policy, now, job, cured.change, lambda made: _starts(made, job.id), starts=True)
        code = _code(cured.plan, job.id)

        def is_as_good(made: Plan) -> bool:
            left = made.reason_of(job.id)
            return left is not None and left.code == code and not _same(left, reason)

        return smallest(snapshot, policy, now, job, cured.change, is_as_good, starts=False)

    others: list[Cured] = []
    for _, change in zip(range(MAX_TRIES), _ways(snapshot, policy, now, made, job, reason), strict=False):
        changed = apply(snapshot, job.id, change)
        cured = Cured(change, changed, plan(changed, policy, now))
        if _starts(cured.plan, job.id):
            if found := reduced(cured):
                return found
            continue
        left = cured.plan.reason_of(job.id)
        if left is not None and not _same(left, reason):
            others.append(cured)
    # The same code about something else counts only if nothing better is found.
    others.sort(key=lambda cured: _code(cured.plan, job.id) == reason.code)
    return next((found for cured in others if (found := reduced(cured))), None)


def _ways(snapshot: Snapshot, policy: Policy, now: float, made: Plan, job: Job, reason: Reason) -> Iterator[Change]:
    board = Board(snapshot.nodes)
    for placement in made.placements:
        board.allocate(placement.ranks)
    preemption = next((one for one in made.preemptions if one.job_id == job.id), None)
    return remedies(snapshot, policy, now, board, job, reason, preemption)


def _starts(made: Plan, job_id: int) -> bool:
    return any(placement.job_id == job_id for placement in made.placements)


def _code(made: Plan, job_id: int) -> str:
    reason = made.reason_of(job_id)
    return "" if reason is None else reason.code


def _same(one: Reason, other: Reason) -> bool:
    return one.code == other.code and dict(one.evidence) == dict(other.evidence)


def _job(snapshot: Snapshot, job_id: int) -> Job:
    return next(job for job in snapshot.jobs if job.id == job_id)
