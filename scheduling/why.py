"""Answers why a job is where it is: its reason, what else stands in its way, what would cure it, when it will start."""

from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from gpusched.lib.problems import not_found
from gpusched.lib.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import WAITING, JobState
from jobs import representation
from jobs.counting import WAITS, WEIGHT
from scheduling import whatif
from scheduling.engine.changes import Change
from scheduling.engine.counterfactual import Step
from scheduling.sayings import change_shape, estimate_shape, reason_shape
from tenants.permissions import Identity


def brief(job_id: int, identity: Identity) -> dict[str, Any]:
    """The reason as it was last written, what stands before the job if it waits, and the reasons that it had before."""
    job, since = _visible(job_id, identity)
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
        "history": _history(job_id, reason["code"] if waits else "", since),
    }


def explain(job_id: int, identity: Identity) -> dict[str, Any]:
    """The same, and for a job that waits what the engine says of it now: `also`, `counterfactual` and `estimate`."""
    told = brief(job_id, identity)
    found, depends, waits = None, False, told["position"] is not None
    # One that nobody has looked at yet may start this moment: what would be is not asked before what is.
    if waits and told["code"] != Pending.SCHEDULER_BEHIND:
        depends = told["code"] == Pending.DEPENDENCY
        is_kept = told["state"] == JobState.HELD or depends or told["code"] == Pending.MAX_PARALLEL
        found = whatif.outlook(job_id, is_held=is_kept)
    steps, estimate = (found.steps, found.estimate) if found else ([], None)
    is_free = told["state"] != JobState.HELD and not depends and told["code"] != Pending.MAX_PARALLEL
    # The cycle may have found another reason than a plan of this moment does: the one that was written stands.
    others = [step for step in steps if step.reason.code != told["code"]]
    also = [reason_shape(step.reason) for step in others]
    return {
        **told,
        "also": [{name: one[name] for name in ("code", "sentence")} for one in also],
        "counterfactual": _cure(told, steps),
        "estimate": estimate_shape(estimate) if estimate and is_free else None,
    }


def position(job_id: int) -> dict[str, int]:
    """Jobs of any tenant that stand before it in the queue, and their GPUs."""
    [row] = query(
        f"""SELECT coalesce(sum({WEIGHT}), 0)::bigint AS jobs,
                  coalesce(sum({WEIGHT} * j.gpu_count::bigint), 0)::bigint AS gpus
             FROM jobs_job j, jobs_job me
            WHERE me.id = %s AND {WAITS} AND j.state <> 'held' AND j.id <> me.id
              AND (-j.priority, j.submitted_at, j.id) < (-me.priority, me.submitted_at, me.id)""",
        [job_id],
    )
    return {"jobs": row["jobs"], "gpus": row["gpus"]}


def _waits(job: dict[str, Any]) -> bool:
    """Whether it waits, or some elements of the array that it is."""
    if job["array"] and job["state"] == JobState.RUNNING:
        return bool(job["reason"])
    return job["state"] in WAITING


def _visible(job_id: int, identity: Identity) -> tuple[dict[str, Any], Any]:
    found = representation.select("j.id = %s", [job_id])
    rows = query("SELECT tenant_id, reason_since FROM jobs_job WHERE id = %s", [job_id])
    if not found or not identity.sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return found[0], rows[0]["reason_since"]


def _history(job_id: int, code: str, since: Any) -> list[dict[str, Any]]:
    """The reasons that the job had, one after the other, with their durations; the present one has no end."""
    rows = query(
        "SELECT code, since_at, until_at FROM jobs_jobreason WHERE job_id = %s ORDER BY until_at DESC LIMIT 200",
        [job_id],
    )
    periods = [(row["code"], row["since_at"], row["until_at"]) for row in reversed(rows)]
    if code and since is not None:
        periods.append((code, since, None))
    now = timezone.now()
    return [
        {
            "code": period,
            "since_at": rfc3339(since_at),
            "until_at": rfc3339(until_at),
            "seconds": round(max(((until_at or now) - since_at).total_seconds(), 0.0), 1),
        }
        for period, since_at, until_at in periods
    ]


def _cure(told: dict[str, Any], steps: Sequence[Step]) -> dict[str, Any] | None:
    """What would cure the reason that is shown: the job starts then, or waits for the next one."""
    change = None
    if told["code"] in (Pending.HELD_BY_USER, Pending.HELD_BY_ADMIN):
        change = Change("released")
    elif told["code"] == Pending.DEPENDENCY:
        change = Change("dependencies_ended", told["evidence"].get("jobs"))
    elif told["code"] == Pending.MAX_PARALLEL:
        change = Change("max_parallel", told["evidence"].get("limit", 0) + 1)
    if change is not None:
        return change_shape(change, starts=not steps, then=steps[0].reason if steps else None)
    if not steps or steps[0].change is None:
        return None
    then = steps[1].reason if len(steps) > 1 else None
    return change_shape(steps[0].change, starts=steps[0].starts, then=then)
