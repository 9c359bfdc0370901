"""Stop the victims of a plan, and store the nominations of the jobs that preempt them."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec

from gpusched.lib.bus import events
from gpusched.lib.db.sql import columns, execute, prepared, retry_atomic
from gpusched.lib.histograms import observe
from jobs.arrays import materialize
from jobs.lifecycle import states
from scheduling.engine.model import Job, Nomination, Plan, Preemption, RankPlacement, Snapshot, public_id

_STORE_NOMINATION = """
    INSERT INTO scheduling_claim (job_id, made_at, rule, ranks)
    SELECT c.job_id, clock_timestamp(), c.rule, c.ranks
      FROM unnest(%s::bigint[], %s::text[], %s::jsonb[]) AS c (job_id, rule, ranks)
        ON CONFLICT (job_id) DO UPDATE SET ranks = excluded.ranks
"""


def preempt(plan: Plan, snapshot: Snapshot, array_ids: Collection[int] = ()) -> int:
    """Stop the victims, each set together with the nomination that it is for. Return how many were stopped.

    A job that is no longer pending preempts no other. A victim that ended by itself meanwhile also frees its
    devices."""
    waiting = {job.id: job for job in snapshot.jobs}
    tenants = {tenant.id: tenant.name for tenant in snapshot.tenants}
    decided = {preemption.job_id for preemption in plan.preemptions}
    stopped, nominated = 0, [nomination.job_id for nomination in plan.claims]
    for preemption in plan.preemptions:
        job = waiting[preemption.job_id]
        by_job, number = retry_atomic(lambda: _stop(preemption, job, tenants[job.tenant_id], array_ids))  # noqa: B023
        stopped, nominated = stopped + number, [*nominated, by_job]
    retained = [nomination.job_id for nomination in plan.claims if nomination.job_id not in decided]
    if retained != [nomination.job_id for nomination in snapshot.claims]:
        execute("DELETE FROM scheduling_claim WHERE job_id <> ALL(%s)", [nominated])
    return stopped


def load_nominations() -> tuple[Nomination, ...]:
    """Return the stored nominations, oldest first."""
    rows = prepared("SELECT job_id, rule, ranks::text FROM scheduling_claim ORDER BY made_at, job_id")
    return tuple(
        Nomination(row["job_id"], msgspec.json.decode(row["ranks"], type=tuple[RankPlacement, ...]), row["rule"])
        for row in rows
    )


def _stop(preemption: Preemption, job: Job, tenant: str, array_ids: Collection[int]) -> tuple[int, int]:
    """Return the preempting job and how many victims were stopped. An array element becomes a job first."""
    if public_id(job.id) in array_ids:
        job_ids = materialize.materialize({public_id(job.id): 1}).created.get(public_id(job.id))
        if not job_ids:
            return 0, 0
        job = replace(job, id=job_ids[0])
    stopped = states.preempt(job.id, preemption.victims, _evidence(preemption, job, tenant))
    if stopped is None:
        return job.id, 0
    ranks = msgspec.json.encode(preemption.ranks).decode()
    execute(_STORE_NOMINATION, columns([(job.id, preemption.rule, ranks)], 3))
    events.changed("jobs", [job.id, *stopped])
    observe("gpu_scheduler_preemptions_total", {preemption.rule: [1.0] * len(stopped)})
    return job.id, len(stopped)


def _evidence(preemption: Preemption, job: Job, tenant: str) -> dict[str, Any]:
    """Return the evidence for the victims' owners: only the id, tenant and right of the preempting job."""
    right = {
        "priority": f"has priority {job.priority}",
        "reclaim": "is within the guarantee of its tenant",
        "online": "is within the online part of the cluster",
    }[preemption.rule]
    return {"by": f"job {job.id} of tenant {tenant}", "by_job": job.id, "why": right, "rule": preemption.rule}
