"""Explain a job's state: its reason, other obstacles, which change would let it start, and when it will start."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from gpusched.lib.api.problems import not_found
from gpusched.lib.db.sql import prepared, query
from gpusched.lib.times import rfc3339
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import WAITING, JobState
from jobs.lifecycle import dependencies
from jobs.listing import representation
from jobs.listing.queue_position import jobs_ahead
from scheduling.cycle import recorded_cycles
from scheduling.engine.model import Reason
from scheduling.engine.whatif.changes import Change
from scheduling.engine.whatif.counterfactual import Step
from scheduling.engine.whatif.questions import Outlook
from scheduling.history.shown import predicted_of_job
from scheduling.whatif import current
from scheduling.whatif.presenters import present_change, present_estimate, present_reason, why_no_estimate
from tenants.auth.identity import Identity

MAX_PERIODS = 200


def current_reason(job_id: int, identity: Identity) -> dict[str, Any]:
    """Return the last written reason, the jobs ahead if the job is pending, and the history of its reasons."""
    job = _visible(job_id, identity)
    reason = job["reason"] or {
        "code": job["state"],
        "sentence": f"it is {job['state']}" + (f" on {', '.join(job['nodes'])}" if job["nodes"] else ""),
        "next_step": "",
        "evidence": {},
        "since": job["started_at"],
    }
    is_waiting = _is_waiting(job)
    return {
        "job_id": job_id,
        "state": job["state"],
        **reason,
        "position": jobs_ahead(job_id) if is_waiting else None,
        "history": _history(job),
        "predicted": predicted_of_job(job_id, identity.user_id),
        "cycle_id": recorded_cycles.deciding(job_id) if identity.is_admin else None,
    }


def explain(job_id: int, identity: Identity) -> dict[str, Any]:
    """Return the current reason and, for a pending job, the engine's `also`, `counterfactual` and `estimate`."""
    reason = current_reason(job_id, identity)
    outlook, first, is_waiting = None, list[int](), reason["position"] is not None
    # A job that no cycle has considered yet may start at any moment: its own plan comes first.
    if is_waiting and reason["code"] != Pending.SCHEDULER_BEHIND:
        depends = reason["code"] == Pending.DEPENDENCY
        is_full = reason["code"] == Pending.MAX_PARALLEL
        is_kept = reason["state"] == JobState.HELD or depends or is_full
        first = _elements_before(job_id) if is_full else []
        outlook = current.outlook(job_id, released=[*first, job_id] if is_kept else [])
    steps = [*(_after_release(job_id) if reason["state"] == JobState.HELD else []), *(outlook.steps if outlook else [])]
    # The written reason takes precedence: a plan of this moment may find another one.
    other_steps = [step for step in steps if step.reason.code != reason["code"]]
    also = [present_reason(step.reason) for step in other_steps]
    return {
        **reason,
        "also": [{name: step_reason[name] for name in ("code", "sentence")} for step_reason in also],
        "counterfactual": _counterfactual(reason, steps, _own_jobs(outlook, identity), len(first)),
        **_estimate_fields(reason, outlook, identity),
    }


# Elements of the same array that are live, or wait again and start before the job.
_OF_ITS_ARRAY = """
      FROM jobs_all me JOIN jobs_all a ON a.id = coalesce(me.array_id, me.id)
      JOIN jobs_all e ON e.array_id = a.id
       AND (e.state IN ('scheduled', 'running', 'stopping')
            OR e.state = 'pending' AND (e.eligible_at IS NULL OR e.eligible_at <= now()) AND e.id < me.id)
     WHERE me.id = %s"""
_FULL_ARRAY = f"""
    SELECT a.array_max_parallel AS "limit", count(*) FILTER (WHERE e.state <> 'pending') AS in_use,
           count(*) FILTER (WHERE e.state = 'pending') AS ahead {_OF_ITS_ARRAY}
     GROUP BY a.id, a.array_max_parallel HAVING count(*) >= a.array_max_parallel
"""
_BEFORE = f"SELECT e.id {_OF_ITS_ARRAY} AND e.state = 'pending' ORDER BY e.id"


def _elements_before(job_id: int) -> list[int]:
    """Return the waiting elements of its array that start before the job."""
    return [row["id"] for row in query(_BEFORE, [job_id])]


def _after_release(job_id: int) -> list[Step]:
    """Return what a held job would wait for once it is released that no plan shows: other jobs, and elements of its
    own array."""
    evidence = dependencies.evidence_of(job_id)
    found = [Reason(job_id, Pending.DEPENDENCY, evidence)] if evidence else []
    found += [Reason(job_id, Pending.MAX_PARALLEL, row) for row in query(_FULL_ARRAY, [job_id])]
    return [Step(each, None, False) for each in found]


def _own_jobs(outlook: Outlook | None, identity: Identity) -> set[int]:
    """Return the jobs that a change names and the caller can see."""
    return {job_id for job_id, tenant_id in outlook.tenants.items() if identity.sees(tenant_id)} if outlook else set()


def _estimate_fields(reason: dict[str, Any], outlook: Outlook | None, identity: Identity) -> dict[str, Any]:
    """Return `estimate`, or in `estimate_reason` why there is none; neither for a job that is no longer pending."""
    no_estimate = why_no_estimate(reason["state"], reason["code"]) if reason["position"] is not None else None
    estimate = outlook and outlook.estimate
    if no_estimate is None and outlook:
        no_estimate = None if estimate else current.why_no_outlook_estimate()
    if not (outlook and estimate) or no_estimate is not None:
        return {"estimate": None, "estimate_reason": no_estimate}
    return {
        "estimate": present_estimate(estimate, outlook.blockers, identity.visible_tenants()),
        "estimate_reason": None,
    }


def _is_waiting(job: dict[str, Any]) -> bool:
    """Return whether the job is pending, or an array with pending elements."""
    if job["array"] and job["state"] == JobState.RUNNING:
        return bool(job["reason"])
    return job["state"] in WAITING


def _visible(job_id: int, identity: Identity) -> dict[str, Any]:
    jobs = representation.select_few([job_id])
    rows = query("SELECT tenant_id FROM jobs_all WHERE id = %s", [job_id])
    if not jobs or not identity.sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return jobs[0]


_PERIODS = """
    SELECT p.* FROM unnest(%s::bigint[]) AS w (job_id),
           LATERAL (SELECT job_id, code, since_at, until_at FROM jobs_reason_periods WHERE job_id = w.job_id
                     ORDER BY until_at DESC LIMIT %s) p ORDER BY p.until_at
"""


def periods_of(jobs: Sequence[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Return by id the successive pending reasons of these jobs, in their REST representation: `code since_at
    until_at`. The present reason has no end."""
    periods: dict[int, list[dict[str, Any]]] = {job["id"]: [] for job in jobs}
    for row in prepared(_PERIODS, [list(periods), MAX_PERIODS]):
        period = {"code": row["code"], "since_at": rfc3339(row["since_at"]), "until_at": rfc3339(row["until_at"])}
        periods[row["job_id"]].append(period)
    for job in jobs:
        if _is_waiting(job) and job["reason"] and job["reason"]["since"]:
            periods[job["id"]].append(
                {"code": job["reason"]["code"], "since_at": job["reason"]["since"], "until_at": None}
            )
    return periods


def _history(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pending reasons of a job with their durations until now."""
    now = timezone.now()
    return [{**period, "seconds": _seconds(period, now)} for period in periods_of([job])[job["id"]]]


def _seconds(period: dict[str, Any], now: datetime) -> float:
    until = now if period["until_at"] is None else datetime.fromisoformat(period["until_at"])
    return round(max((until - datetime.fromisoformat(period["since_at"])).total_seconds(), 0.0), 1)


def _counterfactual(
    reason: dict[str, Any], steps: Sequence[Step], own_jobs: set[int], before: int
) -> dict[str, Any] | None:
    """Return the change that would resolve the displayed reason: the job then starts, or waits for the next reason.
    `before`: the waiting elements of its array that start first."""
    change = None
    if reason["code"] in (Pending.HELD_BY_USER, Pending.HELD_BY_ADMIN):
        change = Change("released")
    elif reason["code"] == Pending.DEPENDENCY:
        change = Change("dependencies_ended", reason["evidence"].get("jobs"))
    elif reason["code"] == Pending.MAX_PARALLEL:
        limit, in_use = (int(reason["evidence"].get(name) or 0) for name in ("limit", "in_use"))
        change = Change("max_parallel", max(limit, in_use + before) + 1)
    if change is not None:
        return present_change(change, starts=not steps, then=steps[0].reason if steps else None)
    if not steps or steps[0].change is None:
        return None
    return present_change(steps[0].change, starts=steps[0].starts, then=steps[0].then, own_jobs=own_jobs)
