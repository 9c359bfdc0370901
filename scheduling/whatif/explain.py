"""Answers why a job is where it is: its reason, what else stands in its way, what would cure it, when it will start."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from gpusched.lib.api.problems import not_found
from gpusched.lib.db.sql import prepared, query
from gpusched.lib.times import rfc3339
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import WAITING, JobState
from jobs.listing import representation
from scheduling.cycle import recorded_cycles
from scheduling.engine.whatif.changes import Change
from scheduling.engine.whatif.counterfactual import Step
from scheduling.engine.whatif.questions import Outlook
from scheduling.whatif import current
from scheduling.whatif.presenters import present_change, present_estimate, present_reason, why_no_estimate
from tenants.auth.identity import Identity

MAX_PERIODS = 200


def current_reason(job_id: int, identity: Identity) -> dict[str, Any]:
    """The reason as it was last written, what stands before the job if it waits, and the reasons that it had before."""
    job = _visible(job_id, identity)
    reason = job["reason"] or {
        "code": job["state"],
        "sentence": f"it is {job['state']}" + (f" on {', '.join(job['nodes'])}" if job["nodes"] else ""),
        "next_step": "",
        "evidence": {},
        "since": job["started_at"],
    }
    waits = _waits(job)
    return {
        "job_id": job_id,
        "state": job["state"],
        **reason,
        "position": position(job_id) if waits else None,
        "history": _history(job),
        "cycle_id": recorded_cycles.deciding(job_id) if identity.is_admin else None,
    }


def explain(job_id: int, identity: Identity) -> dict[str, Any]:
    """The same, and for a job that waits what the engine says of it now: `also`, `counterfactual` and `estimate`."""
    told = current_reason(job_id, identity)
    found, depends, waits = None, False, told["position"] is not None
    # One that nobody has looked at yet may start this moment: what would be is not asked before what is.
    if waits and told["code"] != Pending.SCHEDULER_BEHIND:
        depends = told["code"] == Pending.DEPENDENCY
        is_kept = told["state"] == JobState.HELD or depends or told["code"] == Pending.MAX_PARALLEL
        found = current.outlook(job_id, is_held=is_kept)
    steps = found.steps if found else []
    # The cycle may have found another reason than a plan of this moment does: the one that was written stands.
    others = [step for step in steps if step.reason.code != told["code"]]
    also = [present_reason(step.reason) for step in others]
    return {
        **told,
        "also": [{name: one[name] for name in ("code", "sentence")} for one in also],
        "counterfactual": _cure(told, steps, _own_jobs(found, identity)),
        **_foreseen(told, found, identity),
    }


def _own_jobs(found: Outlook | None, identity: Identity) -> set[int]:
    """The jobs that a change names and the caller may see."""
    return {job_id for job_id, tenant_id in found.tenants.items() if identity.sees(tenant_id)} if found else set()


def _foreseen(told: dict[str, Any], found: Outlook | None, identity: Identity) -> dict[str, Any]:
    """`estimate`, or in `estimate_reason` why there is none; of a job that waits no more there is neither."""
    why = why_no_estimate(told["state"], told["code"]) if told["position"] is not None else None
    estimate = found and found.estimate
    if why is None and found:
        why = None if estimate else current.why_unseen()
    if not (found and estimate) or why is not None:
        return {"estimate": None, "estimate_reason": why}
    return {
        "estimate": present_estimate(estimate, found.blockers, identity.visible_tenants()),
        "estimate_reason": None,
    }


def position(job_id: int) -> dict[str, int]:
    """Jobs of any tenant that stand before it in the queue, and their GPUs."""
    [row] = query(
        """SELECT coalesce(sum(j.weight), 0)::bigint AS jobs,
                  coalesce(sum(j.weight * j.gpu_count::bigint), 0)::bigint AS gpus
             FROM jobs_all j, jobs_all me
            WHERE me.id = %s AND j.is_waiting AND j.state <> 'held' AND j.id <> me.id
              AND (-j.priority, j.submitted_at, j.id) < (-me.priority, me.submitted_at, me.id)""",
        [job_id],
    )
    return {"jobs": row["jobs"], "gpus": row["gpus"]}


def _waits(job: dict[str, Any]) -> bool:
    """Whether it waits, or some elements of the array that it is."""
    if job["array"] and job["state"] == JobState.RUNNING:
        return bool(job["reason"])
    return job["state"] in WAITING


def _visible(job_id: int, identity: Identity) -> dict[str, Any]:
    found = representation.select("j.id = %s", [job_id])
    rows = query("SELECT tenant_id FROM jobs_all WHERE id = %s", [job_id])
    if not found or not identity.sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return found[0]


_PERIODS = """
    SELECT p.* FROM unnest(%s::bigint[]) AS w (job_id),
           LATERAL (SELECT job_id, code, since_at, until_at FROM jobs_reason_periods WHERE job_id = w.job_id
                     ORDER BY until_at DESC LIMIT %s) p ORDER BY p.until_at
"""


def periods_of(jobs: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """By id the reasons that these jobs, as REST shows them, waited for, one after the other: `code since_at until_at`;
    the present one has no end."""
    found: dict[int, list[dict[str, Any]]] = {job["id"]: [] for job in jobs}
    for row in prepared(_PERIODS, [list(found), MAX_PERIODS]):
        period = {"code": row["code"], "since_at": rfc3339(row["since_at"]), "until_at": rfc3339(row["until_at"])}
        found[row["job_id"]].append(period)
    for job in jobs:
        if _waits(job) and job["reason"] and job["reason"]["since"]:
            found[job["id"]].append(
                {"code": job["reason"]["code"], "since_at": job["reason"]["since"], "until_at": None}
            )
    return found


def _history(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The same of one job with their durations until now."""
    now = timezone.now()
    return [{**period, "seconds": _seconds(period, now)} for period in periods_of([job])[job["id"]]]


def _seconds(period: dict[str, Any], now: datetime) -> float:
    until = now if period["until_at"] is None else datetime.fromisoformat(period["until_at"])
    return round(max((until - datetime.fromisoformat(period["since_at"])).total_seconds(), 0.0), 1)


def _cure(told: dict[str, Any], steps: Sequence[Step], own_jobs: set[int]) -> dict[str, Any] | None:
    """What would cure the reason that is shown: the job starts then, or waits for the next one."""
    change = None
    if told["code"] in (Pending.HELD_BY_USER, Pending.HELD_BY_ADMIN):
        change = Change("released")
    elif told["code"] == Pending.DEPENDENCY:
        change = Change("dependencies_ended", told["evidence"].get("jobs"))
    elif told["code"] == Pending.MAX_PARALLEL:
        change = Change("max_parallel", told["evidence"].get("limit", 0) + 1)
    if change is not None:
        return present_change(change, starts=not steps, then=steps[0].reason if steps else None)
    if not steps or steps[0].change is None:
        return None
    then = steps[1].reason if len(steps) > 1 else None
    return present_change(steps[0].change, starts=steps[0].starts, then=then, own_jobs=own_jobs)
