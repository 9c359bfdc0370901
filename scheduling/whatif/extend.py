"""Decides whether the time limit of a job may be changed: by whom, by how much, and whose start it would delay."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.time_limits import Extension
from gpusched.protocol.states import Role
from jobs.lifecycle import time_limit
from jobs.lifecycle.time_limit import TimeLimitState
from scheduling import policy
from scheduling.engine.explain.explain import timestamp
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.questions import Broken, Delayed
from scheduling.whatif import current
from scheduling.whatif.client import ask
from tenants.auth.identity import Identity

MIN_MINUTES, MAX_MINUTES = 0.01, 5_256_000.0
MAX_TRIES = 3
_UNKNOWN = "; who starts later by it could not be worked out"


def extend(
    job_id: int, wanted: Extension, identity: Identity, *, is_dry_run: bool, seen: int | None = None
) -> dict[str, Any]:
    """Changes the limit, and says what follows (docs/rest.md). 400, 403, 404; 409 when the job has ended, when it has
    another limit than the one that was `seen` (seconds), or when another one that waits is promised the place and
    nobody forces it."""
    if wanted.force:
        identity.require_admin()
    for _ in range(MAX_TRIES - 1):
        try:
            return _extend(job_id, wanted, identity, is_dry_run=is_dry_run, seen=seen)
        except Problem as problem:  # it began to run, say: what follows may be something else now
            if problem.code != "changed_meanwhile":
                raise
    return _extend(job_id, wanted, identity, is_dry_run=is_dry_run, seen=seen)


def allowed(job_id: int, wanted: Extension, identity: Identity) -> tuple[TimeLimitState, int]:
    """The job, and the limit in seconds that this person may give it; else 400, 403, 404, 409. That somebody who waits
    is promised the place is not asked here."""
    job = time_limit.load_for_change(job_id, identity)
    seconds = _wanted_seconds(job, wanted)
    _require_allowed(job, seconds, identity)
    return job, seconds


def _extend(
    job_id: int, wanted: Extension, identity: Identity, *, is_dry_run: bool, seen: int | None
) -> dict[str, Any]:
    job, seconds = allowed(job_id, wanted, identity)
    if seen is not None and job.limit != seen:
        told = f"the time limit of job {job_id} was changed meanwhile"
        raise Problem(409, "changed_meanwhile", told, next_step="look at it, and set the one that is meant")
    unknown = ""
    try:
        broken, delayed = _consequences(job, seconds)
    except Problem as problem:
        # Who forces it takes what follows: a job is not to end because nobody can say what that is.
        if problem.code != "unanswered" or not wanted.force or is_dry_run:
            raise
        broken, delayed, unknown = None, [], _UNKNOWN
    if broken and not wanted.force:
        raise _promised(broken, job, identity)
    if seconds != job.limit and not is_dry_run:
        time_limit.change(job, seconds, identity, {"forced": True} if broken or unknown else {})
    visible = [one for one in delayed if identity.sees(one.tenant_id)]
    status = "unchanged" if seconds == job.limit else "would_be_changed" if is_dry_run else "changed"
    return {
        "status": status,
        "message": _message(job, seconds, status, len(delayed)) + unknown,
        "ends_at": rfc3339(_ends_at(job, seconds)),
        "delays": [
            {"job_id": one.job_id, "was_p90_at": _time(one.before), "p90_at": _time(one.after)} for one in visible
        ],
        "others_delayed": len(delayed) - len(visible),
    }


def _wanted_seconds(job: TimeLimitState, wanted: Extension) -> int:
    limit, more = wanted.max_runtime_minutes, wanted.add_minutes
    if (limit is None) == (more is None):
        raise invalid([FieldError("max_runtime_minutes", "required", "give this or add_minutes, and not both")])
    field = "max_runtime_minutes" if more is None else "add_minutes"
    if more is not None:
        if job.limit is None:
            told = f"job {job.job_id} has no time limit to add to; give max_runtime_minutes"
            raise invalid([FieldError(field, "no_limit", told)])
        limit = job.limit / 60 + more
    assert limit is not None
    if not MIN_MINUTES <= limit <= MAX_MINUTES:
        told = f"the limit must be between {MIN_MINUTES} and {MAX_MINUTES:.0f} minutes"
        raise invalid([FieldError(field, "out_of_range", told)])
    seconds = max(1, round(limit * 60))
    if job.elapsed is not None and seconds <= job.elapsed and seconds != job.limit:
        who = f"an element of array {job.job_id}" if job.is_array else f"job {job.job_id}"
        told = f"{who} has run for {job.elapsed / 60:.1f} minutes already; give more, or cancel it"
        raise invalid([FieldError(field, "out_of_range", told)])
    return seconds


def _is_longer(job: TimeLimitState, seconds: int) -> bool:
    return job.limit is not None and seconds > job.limit


def _require_allowed(job: TimeLimitState, seconds: int, identity: Identity) -> None:
    """Members may extend what runs by so much in all. What waits could as well be submitted anew."""
    if not job.live or not _is_longer(job, seconds) or identity.has(Role.OWNER, job.tenant_id) or job.base is None:
        return
    most: float = policy.values()["member_extend_minutes"]
    if seconds > job.base + most * 60:
        what = "one of its elements" if job.is_array else "this one"
        said = (
            f"members may extend a running job by {most:g} minutes in all, {what} to {job.base / 60 + most:g} minutes"
        )
        raise Problem(
            403,
            "extension_too_long",
            said if most else "members may not extend running jobs",
            next_step="ask an owner of the tenant to extend it",
            errors=[FieldError("max_runtime_minutes", "out_of_range", said)],
        )


def _ends_at(job: TimeLimitState, seconds: int) -> datetime | None:
    return job.started_at + timedelta(seconds=seconds) if job.started_at else None


def _message(job: TimeLimitState, seconds: int, status: str, delayed: int) -> str:
    ends_at = _ends_at(job, seconds)
    until = f"until {ends_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if ends_at else "once it has started"
    who = f"job {job.job_id}"
    if job.is_array:
        who = f"each element of array {job.job_id}"
        until = f"{len(job.live)} of them run already" if job.live else until
    verb = {"changed": "may now run", "unchanged": "may already run"}.get(status, "would be allowed to run")
    jobs = "1 waiting job starts" if delayed == 1 else f"{delayed} waiting jobs start"
    return f"{who} {verb} for {seconds / 60:g} minutes, {until}" + (f"; {jobs} later" if delayed else "")


# --- what follows for others ------------------------------------------------------------------------------------------


def _consequences(job: TimeLimitState, seconds: int) -> tuple[Broken | None, list[Delayed]]:
    """Nothing follows from a shorter limit, nor from that of a job that holds nothing yet."""
    if not job.live or not _is_longer(job, seconds):
        return None, []
    here = current.take_snapshot()
    waiting = len(here.snapshot.jobs)
    if not waiting:
        return None, []
    broken, delayed = ask(
        here,
        questions.extend_effects,
        job.live,
        seconds,
        is_small=waiting <= current.MAX_JOBS,
        is_foreseen=waiting <= current.MAX_BEHIND,
    )
    # That its own next elements start later is what an array is extended at the price of.
    own = broken is not None and broken.job_id == job.job_id
    return None if own else broken, [one for one in delayed if one.job_id != job.job_id]


def _promised(broken: Broken, job: TimeLimitState, identity: Identity) -> Problem:
    who = f"job {broken.job_id}" if identity.sees(broken.tenant_id) else "a job of another tenant"
    then = f"move that to {_time(broken.then)}" if broken.then else "leave it without one"
    return Problem(
        409,
        "promised",
        f"{who} is promised a start at {_time(broken.at)} at the latest, and this would {then}",
        next_step=f"extend job {job.job_id} by less, or ask an admin to force it",
        errors=[FieldError("max_runtime_minutes", "promised", "is more than a promise leaves")],
    )


def _time(at: float | None) -> str | None:
    return None if at is None else timestamp(at)
