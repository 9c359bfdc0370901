"""Finds the differences with which a waiting job would start, each proved by another plan."""

from collections.abc import Iterator
from typing import NamedTuple

from scheduling.engine.board.board import Board
from scheduling.engine.bookings.bookings import unbooked
from scheduling.engine.model import Job, Plan, Policy, Reason, Snapshot
from scheduling.engine.planner import plan
from scheduling.engine.whatif.changes import Change, apply
from scheduling.engine.whatif.remedies import remedies
from scheduling.engine.whatif.smallest import OF_SETS, Cured, smallest

# Changes that the owner of a job can make to it alone.
JOB_CHANGES = frozenset(
    {
        "gpu_count", "gpu_memory_mb", "gpu_model", "cpu_cores", "memory_mb", "cpu_and_memory_percent",
        "gang_scheduling", "ranks", "node_selector", "node_affinity", "tolerations", "topology", "apart",
        "max_runtime_seconds", "workload_class", "booking",
    }
)  # fmt: skip
# Maximum number of reasons in a row, and of cures tried for each.
MAX_STEPS, MAX_TRIES = 5, 8


class Step(NamedTuple):
    """A reason that a job waits, and the change that makes it start or leaves it with another reason; None: no change
    was proved. `starts`: with this change, and those of the steps before, it starts. `then`: otherwise why it waits
    then, which may be the same code with other evidence."""

    reason: Reason
    change: Change | None
    starts: bool
    then: Reason | None = None


def obstacles(
    snapshot: Snapshot, policy: Policy, now: float, job_id: int, current_plan: Plan | None = None
) -> list[Step]:
    """Return the dominant reason of a waiting job, then the reason that would remain if that were cured, and so on.

    Empty: it starts in this cycle, or does not wait. Every step costs a plan of the whole snapshot for each try.
    `current_plan`: the plan of this snapshot, if the caller has it.
    """
    steps: list[Step] = []
    codes: set[str] = set()
    current_plan = current_plan or plan(snapshot, policy, now)
    while len(steps) < MAX_STEPS:
        reason = current_plan.reason_of(job_id)
        if reason is None or reason.code in codes:
            break
        codes.add(reason.code)
        cured = _cure(snapshot, policy, now, current_plan, reason)
        if cured is None:
            steps.append(Step(reason, None, False))
            break
        change, snapshot, current_plan = cured
        steps.append(Step(reason, change, _starts(current_plan, job_id), current_plan.reason_of(job_id)))
    return steps


def alternatives(
    snapshot: Snapshot, policy: Policy, now: float, job_id: int, maximum: int = 3, current_plan: Plan | None = None
) -> list[Change]:
    """Return at most `maximum` changes of the job itself with which it would start now, each by itself.
    `current_plan`: as in `obstacles`."""
    current_plan = current_plan or plan(snapshot, policy, now)
    reason = current_plan.reason_of(job_id)
    if reason is None:
        return []
    changes: list[Change] = []
    job = _job(snapshot, job_id)
    ways = (
        change for change in _ways(snapshot, policy, now, current_plan, job, reason) if change.change in JOB_CHANGES
    )
    for _, change in zip(range(2 * maximum), ways, strict=False):
        if len(changes) < maximum and _starts(plan(apply(snapshot, job_id, change), policy, now), job_id):
            changes.append(change)
    return changes


def _cure(snapshot: Snapshot, policy: Policy, now: float, current_plan: Plan, reason: Reason) -> Cured | None:
    """Return the first change that makes the job start; else the first that leaves it with another reason. A set of
    jobs, nodes or devices is reduced to those that are needed."""
    job = _job(snapshot, reason.job_id)

    def reduced(cured: Cured) -> Cured | None:
        if cured.change.change not in OF_SETS:
            return cured
        if _starts(cured.plan, job.id):
            return smallest(
                snapshot, policy, now, job, cured.change, lambda new_plan: _starts(new_plan, job.id), starts=True
            )
        code = _code(cured.plan, job.id)

        def is_as_good(new_plan: Plan) -> bool:
            remaining = new_plan.reason_of(job.id)
            return remaining is not None and remaining.code == code and not _same(remaining, reason)

        return smallest(snapshot, policy, now, job, cured.change, is_as_good, starts=False)

    other_cures: list[Cured] = []
    for _, change in zip(range(MAX_TRIES), _ways(snapshot, policy, now, current_plan, job, reason), strict=False):
        changed = apply(snapshot, job.id, change)
        cured = Cured(change, changed, plan(changed, policy, now))
        if _starts(cured.plan, job.id):
            if result := reduced(cured):
                return result
            continue
        remaining = cured.plan.reason_of(job.id)
        if remaining is not None and not _same(remaining, reason):
            other_cures.append(cured)
    # Prefer another code to the same code with other evidence.
    other_cures.sort(key=lambda cured: _code(cured.plan, job.id) == reason.code)
    return next((result for cured in other_cures if (result := reduced(cured))), None)


def _ways(
    snapshot: Snapshot, policy: Policy, now: float, current_plan: Plan, job: Job, reason: Reason
) -> Iterator[Change]:
    board = unbooked(Board(snapshot.nodes), snapshot, now)
    for placement in current_plan.placements:
        board.allocate(placement.ranks)
    preemption = next((entry for entry in current_plan.preemptions if entry.job_id == job.id), None)
    return remedies(snapshot, policy, now, board, job, reason, preemption)


def _starts(new_plan: Plan, job_id: int) -> bool:
    return any(placement.job_id == job_id for placement in new_plan.placements)


def _code(new_plan: Plan, job_id: int) -> str:
    reason = new_plan.reason_of(job_id)
    return "" if reason is None else reason.code


def _same(first: Reason, second: Reason) -> bool:
    return first.code == second.code and dict(first.evidence) == dict(second.evidence)


def _job(snapshot: Snapshot, job_id: int) -> Job:
    return next(job for job in snapshot.jobs if job.id == job_id)
