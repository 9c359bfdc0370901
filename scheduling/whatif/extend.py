"""Change the time limit of a job: who may change it, by how much, and which starts it would delay."""

from datetime import UTC, datetime, timedelta
from math import floor
from typing import Any

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.db import locks
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import retry_atomic
from gpusched.lib.times import readable, rfc3339
from gpusched.protocol import amounts
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.time_limits import Extension
from gpusched.protocol.states import Role
from jobs.lifecycle import time_limit
from jobs.lifecycle.time_limit import TimeLimitState
from scheduling import policy
from scheduling.engine.explain.explain import timestamp
from scheduling.engine.whatif import questions
from scheduling.engine.whatif.questions import Broken, Delayed
from scheduling.reservations import bookings
from scheduling.reservations.bookings import Crossed
from scheduling.whatif import current
from scheduling.whatif.client import ask
from tenants.auth.identity import Identity

MIN_MINUTES, MAX_MINUTES = 0.01, 5_256_000.0
MAX_TRIES = 3
_UNKNOWN = "; the delays of other jobs could not be computed"


def extend(
    job_id: int, extension: Extension, identity: Identity, *, is_dry_run: bool, expected: int | None = None
) -> dict[str, Any]:
    """Change the limit and return the effects (docs/rest.md). 400, 403, 404; 409 if the job has ended, if its limit is
    not the `expected` one (seconds), or if a pending job is promised the place and `force` is not set."""
    if extension.force:
        identity.require_admin()
    for _ in range(MAX_TRIES - 1):
        try:
            return _extend(job_id, extension, identity, is_dry_run=is_dry_run, expected=expected)
        except Problem as problem:  # it started, for example, which changes the effects
            if problem.code != "changed_meanwhile":
                raise
    return _extend(job_id, extension, identity, is_dry_run=is_dry_run, expected=expected)


def allowed(job_id: int, extension: Extension, identity: Identity) -> tuple[TimeLimitState, int]:
    """Return the job and the allowed new limit in seconds. Raise 400, 403, 404 or 409. Promises to pending jobs are not
    checked here."""
    job = time_limit.load_for_change(job_id, identity)
    seconds = _requested_seconds(job, extension)
    _require_allowed(job, seconds, identity)
    return job, seconds


def _extend(
    job_id: int, extension: Extension, identity: Identity, *, is_dry_run: bool, expected: int | None
) -> dict[str, Any]:
    job, seconds = allowed(job_id, extension, identity)
    if expected is not None and job.limit != expected:
        detail = f"the time limit of job {job_id} was changed meanwhile"
        raise Problem(409, "changed_meanwhile", detail, next_step="read the job again and repeat the change")
    unknown = ""
    try:
        broken, delayed = _consequences(job, seconds)
    except Problem as problem:
        # With `force` the caller accepts any effect: a job must not end because the effects are unknown.
        if problem.code != "unanswered" or not extension.force or is_dry_run:
            raise
        broken, delayed, unknown = None, [], _UNKNOWN
    if broken and not extension.force:
        raise _promise_problem(broken, job, identity)
    if seconds != job.limit:
        evidence = {"forced": True} if broken or unknown else {}
        retry_atomic(lambda: _change(job, seconds, identity, evidence, is_dry_run=is_dry_run))
    visible = [delay for delay in delayed if identity.sees(delay.tenant_id)]
    status = "unchanged" if seconds == job.limit else "would_be_changed" if is_dry_run else "changed"
    return {
        "status": status,
        "message": _message(job, seconds, status, len(delayed)) + unknown,
        "ends_at": rfc3339(_ends_at(job, seconds)),
        "delays": [
            {"job_id": delay.job_id, "was_p90_at": _time(delay.before), "p90_at": _time(delay.after)}
            for delay in visible
        ],
        "others_delayed": len(delayed) - len(visible),
    }


def _change(
    job: TimeLimitState, seconds: int, identity: Identity, evidence: dict[str, Any], *, is_dry_run: bool
) -> None:
    """Change the limit, unless the job would cross a reservation: that is never forced."""
    if _is_longer(job, seconds) and (job.live or job.is_array):
        locks.acquire_in_transaction(Lock.RESERVATIONS, shared=True)
        live = time_limit.lock_live(job.job_id) if job.is_array else job.live  # more elements may have started
        if crossed := bookings.first_crossed(live, seconds):
            raise _reserved_problem(crossed, job, identity)
    if not is_dry_run:
        time_limit.change(job, seconds, identity, evidence)


def _reserved_problem(crossed: Crossed, job: TimeLimitState, identity: Identity) -> Problem:
    reservation = "a reservation of another tenant"
    if identity.sees(crossed.tenant_id):
        reservation = f"reservation {crossed.reservation_id}"
    longest = max(crossed.seconds, job.limit or 0)
    return Problem(
        409,
        "reserved",
        f"{reservation} has its GPUs from {readable(crossed.starts_at)}, so its limit may be at most "
        f"{_minutes(longest)} minutes",
        next_step="set a limit that ends before then, or save its state and submit it again",
        errors=[FieldError("max_runtime_minutes", "reserved", "would cross a reservation")],
    )


def _requested_seconds(job: TimeLimitState, extension: Extension) -> int:
    limit, more = extension.max_runtime_minutes, extension.add_minutes
    if (limit is None) == (more is None):
        raise invalid([FieldError("max_runtime_minutes", "required", "set either this or add_minutes")])
    field = "max_runtime_minutes" if more is None else "add_minutes"
    if more is not None:
        if job.limit is None:
            message = f"job {job.job_id} has no time limit to extend; set max_runtime_minutes"
            raise invalid([FieldError(field, "no_limit", message)])
        limit = job.limit / 60 + more
    assert limit is not None
    if not MIN_MINUTES <= limit <= MAX_MINUTES:
        message = f"the limit must be between {MIN_MINUTES} and {MAX_MINUTES:.0f} minutes"
        raise invalid([FieldError(field, "out_of_range", message)])
    seconds = max(1, round(limit * 60))
    if job.elapsed is not None and seconds <= job.elapsed and seconds != job.limit:
        subject = f"an element of array {job.job_id}" if job.is_array else f"job {job.job_id}"
        message = f"{subject} has run for {job.elapsed / 60:.1f} minutes already; set a longer limit, or cancel it"
        raise invalid([FieldError(field, "out_of_range", message)])
    return seconds


def _is_longer(job: TimeLimitState, seconds: int) -> bool:
    return job.limit is not None and seconds > job.limit


def _require_allowed(job: TimeLimitState, seconds: int, identity: Identity) -> None:
    """Raise a 403 beyond a member's total extension of a running job. A pending job could as well be submitted
    again."""
    if not job.live or not _is_longer(job, seconds) or identity.has(Role.OWNER, job.tenant_id) or job.base is None:
        return
    maximum: float = policy.values()["member_extend_minutes"]
    if seconds > job.base + maximum * 60:
        subject = "one of its elements" if job.is_array else "this one"
        total = f"{subject} to {_minutes(job.base + maximum * 60)} minutes"
        detail = f"members may extend a running job by {maximum:g} minutes in all, {total}"
        raise Problem(
            403,
            "extension_too_long",
            detail if maximum else "members may not extend running jobs",
            next_step="ask an owner of the tenant to extend it",
            errors=[FieldError("max_runtime_minutes", "out_of_range", detail)],
        )


def _ends_at(job: TimeLimitState, seconds: int) -> datetime | None:
    return job.started_at + timedelta(seconds=seconds) if job.started_at else None


def _message(job: TimeLimitState, seconds: int, status: str, delayed: int) -> str:
    ends_at = _ends_at(job, seconds)
    until = f"until {ends_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if ends_at else "once it has started"
    subject = f"job {job.job_id}"
    if job.is_array:
        subject = f"each element of array {job.job_id}"
        until = f"{len(job.live)} of them run already" if job.live else until
    verb = {"changed": "may now run", "unchanged": "may already run"}.get(status, "would be allowed to run")
    jobs = "1 waiting job starts" if delayed == 1 else f"{delayed} waiting jobs start"
    return f"{subject} {verb} for {_minutes(seconds)} minutes, {until}" + (f"; {jobs} later" if delayed else "")


def _consequences(job: TimeLimitState, seconds: int) -> tuple[Broken | None, list[Delayed]]:
    """Return the broken promise and delayed jobs; none for a shorter limit, or a job that holds nothing yet."""
    if not job.live or not _is_longer(job, seconds):
        return None, []
    view = current.take_snapshot()
    waiting = len(view.snapshot.jobs)
    if not waiting:
        return None, []
    broken, delayed = ask(
        view,
        questions.extend_effects,
        job.live,
        seconds,
        is_small=waiting <= current.MAX_JOBS,
        is_foreseen=waiting <= current.MAX_BEHIND,
    )
    # The later start of its own next elements is the accepted price of extending an array.
    is_own = broken is not None and broken.job_id == job.job_id
    return None if is_own else broken, [delay for delay in delayed if delay.job_id != job.job_id]


def _promise_problem(broken: Broken, job: TimeLimitState, identity: Identity) -> Problem:
    promised = f"job {broken.job_id}" if identity.sees(broken.tenant_id) else "a job of another tenant"
    then = f"move that to {_time(broken.then)}" if broken.then else "leave it without one"
    return Problem(
        409,
        "promised",
        f"{promised} is promised a start at {_time(broken.at)} at the latest, and this would {then}",
        next_step=f"extend job {job.job_id} by less, or ask an admin to force it",
        errors=[FieldError("max_runtime_minutes", "promised", "is more than a promise leaves")],
    )


def _minutes(seconds: float) -> str:
    """Format a limit in minutes, rounded down, so that it is accepted."""
    return amounts.exact(floor(seconds) * 100 // 60 / 100)


def _time(at: float | None) -> str | None:
    return None if at is None else timestamp(at)
