"""Tells the victims of a plan to stop, and keeps the claims of those that they were stopped for."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec

from gpusched.lib.bus import events
from gpusched.lib.db.sql import columns, execute, query, retry_atomic
from gpusched.lib.histograms import observe
from jobs.arrays import materialize
from jobs.lifecycle import states
from scheduling.engine.model import Job, Nomination, Plan, Preemption, RankPlacement, Snapshot, public_id

_KEEP = """
    INSERT INTO scheduling_claim (job_id, made_at, rule, ranks)
    SELECT c.job_id, clock_timestamp(), c.rule, c.ranks
      FROM unnest(%s::bigint[], %s::text[], %s::jsonb[]) AS c (job_id, rule, ranks)
        ON CONFLICT (job_id) DO UPDATE SET ranks = excluded.ranks
"""


def preempt(plan: Plan, snapshot: Snapshot, array_ids: Collection[int] = ()) -> int:
    """Stops the victims, each set together with the claim that it was stopped for; gives how many were stopped.

    A job that no longer waits preempts nobody. A victim that ended by itself meanwhile has made room all the same."""
    waiting = {job.id: job for job in snapshot.jobs}
    tenants = {tenant.id: tenant.name for tenant in snapshot.tenants}
    decided = {one.job_id for one in plan.preemptions}
    stopped, claiming = 0, [claim.job_id for claim in plan.claims]
    for one in plan.preemptions:
        job = waiting[one.job_id]
        by_job, number = retry_atomic(lambda: _stop(one, job, tenants[job.tenant_id], array_ids))  # noqa: B023
        stopped, claiming = stopped + number, [*claiming, by_job]
    kept = [claim.job_id for claim in plan.claims if claim.job_id not in decided]
    if kept != [claim.job_id for claim in snapshot.claims]:
        execute("DELETE FROM scheduling_claim WHERE job_id <> ALL(%s)", [claiming])
    return stopped


def load_nominations() -> tuple[Nomination, ...]:
    """Those that were kept, oldest first."""
    rows = query("SELECT job_id, rule, ranks::text FROM scheduling_claim ORDER BY made_at, job_id")
    return tuple(
        Nomination(row["job_id"], msgspec.json.decode(row["ranks"], type=tuple[RankPlacement, ...]), row["rule"])
        for row in rows
    )


def _stop(one: Preemption, job: Job, tenant: str, array_ids: Collection[int]) -> tuple[int, int]:
    """The job that they are stopped for, and how many are. An element of an array becomes a job for it."""
    if public_id(job.id) in array_ids:
        made = materialize.materialize({public_id(job.id): 1}).created.get(public_id(job.id))
        if not made:
            return 0, 0
        job = replace(job, id=made[0])
    stopped = states.preempt(job.id, one.victims, _why(one, job, tenant))
    if stopped is None:
        return job.id, 0
    ranks = msgspec.json.encode(one.ranks).decode()
    execute(_KEEP, columns([(job.id, one.rule, ranks)], 3))
    events.changed("jobs", [job.id, *stopped])
    observe("gpu_scheduler_preemptions_total", {one.rule: [1.0] * len(stopped)})
    return job.id, len(stopped)


def _why(one: Preemption, job: Job, tenant: str) -> dict[str, Any]:
    """What the owners of the victims are told; of the other job no more than its number, tenant and right."""
    right = {
        "priority": f"has priority {job.priority}",
        "reclaim": "is within the guarantee of its tenant",
        "online": "is within the online part of the cluster",
    }[one.rule]
    return {"by": f"job {job.id} of tenant {tenant}", "by_job": job.id, "why": right, "rule": one.rule}
