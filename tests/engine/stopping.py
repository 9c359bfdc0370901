"""The consequences of a plan that preempts: victims stop, and release their resources."""

from dataclasses import replace

from scheduling.engine.model import Job, Nomination, Plan, Policy, Preemption, RunningJob, Snapshot
from tests.engine import oracle
from tests.engine.scenario import NOW

AT_ONCE = Policy(min_runtime_seconds=0, preemption_delay_seconds=0)


def nominated_jobs(new_plan: Plan) -> set[int]:
    return {nomination.job_id for nomination in new_plan.claims}


def with_stopping(snapshot: Snapshot, preemptions: tuple[Preemption, ...]) -> Snapshot:
    """Return the snapshot with the victims stopping."""
    victim_of = {id: preemption.job_id for preemption in preemptions for id in preemption.victims}
    return replace(
        snapshot,
        running=tuple(
            replace(running_job, is_stopping=True, stopping_for=victim_of[running_job.job_id])
            if running_job.job_id in victim_of
            else running_job
            for running_job in snapshot.running
        ),
        claims=tuple(Nomination(preemption.job_id, preemption.ranks, preemption.rule) for preemption in preemptions),
    )


def given_back(snapshot: Snapshot, jobs_by_id: dict[int, Job]) -> Snapshot:
    """Return the snapshot once stopping jobs have ended: they wait again, with their queue time."""
    ended = [running_job for running_job in snapshot.running if running_job.is_stopping]
    return replace(
        oracle.without(snapshot, [entry.job_id for entry in ended]),
        jobs=(*snapshot.jobs, *[_waiting_again(entry, jobs_by_id) for entry in ended]),
    )


def _waiting_again(ended_job: RunningJob, jobs_by_id: dict[int, Job]) -> Job:
    return jobs_by_id.setdefault(
        ended_job.job_id,
        Job(
            ended_job.job_id,
            ended_job.tenant_id,
            ended_job.request,
            ended_job.priority,
            queued_at=NOW - 10_000 - ended_job.job_id,
            is_online=ended_job.is_online,
        ),
    )
