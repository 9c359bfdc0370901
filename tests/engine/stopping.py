"""What follows a plan that preempts: victims are told to stop, and give back what they hold."""

from dataclasses import replace

from scheduling.engine.model import Job, Nomination, Plan, Policy, Preemption, RunningJob, Snapshot
from tests.engine import oracle
from tests.engine.scenario import NOW

AT_ONCE = Policy(min_runtime_seconds=0, preemption_delay_seconds=0)


def claimants(made: Plan) -> set[int]:
    return {claim.job_id for claim in made.claims}


def told(snapshot: Snapshot, preemptions: tuple[Preemption, ...]) -> Snapshot:
    """The victims have been told to stop."""
    victim_of = {id: one.job_id for one in preemptions for id in one.victims}
    return replace(
        snapshot,
        running=tuple(
            replace(one, is_stopping=True, stopping_for=victim_of[one.job_id]) if one.job_id in victim_of else one
            for one in snapshot.running
        ),
        claims=tuple(Nomination(one.job_id, one.ranks, one.rule) for one in preemptions),
    )


def given_back(snapshot: Snapshot, known: dict[int, Job]) -> Snapshot:
    """What was told to stop has stopped and waits again, with its queue time."""
    gone = [one for one in snapshot.running if one.is_stopping]
    return replace(
        oracle.without(snapshot, [one.job_id for one in gone]),
        jobs=(*snapshot.jobs, *[_waiting_again(one, known) for one in gone]),
    )


def _waiting_again(one: RunningJob, known: dict[int, Job]) -> Job:
    return known.setdefault(
        one.job_id,
        Job(
            one.job_id,
            one.tenant_id,
            one.request,
            one.priority,
            queued_at=NOW - 10_000 - one.job_id,
            is_online=one.is_online,
        ),
    )
