"""Tells the victims of a plan to stop, and keeps the claims of those that they were stopped for."""

from typing import Any

import msgspec

from gpusched.lib import events
from gpusched.lib.histograms import observe
from gpusched.lib.sql import atomically, columns, execute, query
from jobs import transitions
from scheduling.engine.model import Claim, Job, Plan, Preemption, RankPlacement, Snapshot

_KEEP = """
    INSERT INTO scheduling_claim (job_id, made_at, rule, ranks)
    SELECT c.job_id, clock_timestamp(), c.rule, c.ranks
      FROM unnest(%s::bigint[], %s::text[], %s::jsonb[]) AS c (job_id, rule, ranks)
        ON CONFLICT (job_id) DO UPDATE SET ranks = excluded.ranks
"""


def preempt(plan: Plan, snapshot: Snapshot) -> int:
    """Stops the victims, each set together with the claim that it was stopped for; gives how many were stopped.

    A job that no longer waits preempts nobody. A victim that ended by itself meanwhile has made room all the same."""
    waiting = {job.id: job for job in snapshot.jobs}
    tenants = {tenant.id: tenant.name for tenant in snapshot.tenants}
    rules = {one.job_id: one.rule for one in plan.preemptions}
    stopped = 0
    for one in plan.preemptions:
        job = waiting[one.job_id]
        stopped += atomically(lambda: _stop(one, _why(one, job, tenants[job.tenant_id])))  # noqa: B023
    kept = [claim for claim in plan.claims if claim.job_id not in rules]
    if [claim.job_id for claim in kept] != [claim.job_id for claim in snapshot.claims]:
        execute("DELETE FROM scheduling_claim WHERE job_id <> ALL(%s)", [[claim.job_id for claim in plan.claims]])
    return stopped


def claims() -> tuple[Claim, ...]:
    """Those that were kept, oldest first."""
    rows = query("SELECT job_id, rule, ranks::text FROM scheduling_claim ORDER BY made_at, job_id")
    return tuple(
        Claim(row["job_id"], msgspec.json.decode(row["ranks"], type=tuple[RankPlacement, ...]), row["rule"])
        for row in rows
    )


def _stop(one: Preemption, evidence: dict[str, Any]) -> int:
    stopped = transitions.preempt(one.job_id, one.victims, evidence)
    if stopped is None:
        return 0
    ranks = msgspec.json.encode(one.ranks).decode()
    execute(_KEEP, columns([(one.job_id, one.rule, ranks)], 3))
    events.changed("jobs", [one.job_id, *stopped])
    observe("gpu_scheduler_preemptions_total", {one.rule: [1.0] * len(stopped)})
    return len(stopped)


def _why(one: Preemption, job: Job, tenant: str) -> dict[str, Any]:
    """What the owners of the victims are told; of the other job no more than its number, tenant and right."""
    right = {
        "priority": f"has priority {job.priority}",
        "reclaim": "is within the guarantee of its tenant",
        "online": "is within the online part of the cluster",
    }[one.rule]
    return {"by": f"job {job.id} of tenant {tenant}", "by_job": job.id, "why": right, "rule": one.rule}
