"""The rule for an attempt's end: the job completes, fails, is cancelled or returns to the queue. Writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from gpusched.lib.db.sql import query
from gpusched.protocol.exits import SEEN_BY_AGENT, ExitClass
from gpusched.protocol.reasons import NODE_FAULTS, EndReason, Pending
from gpusched.protocol.states import JobState

_BY_REASON: dict[str, ExitClass] = {
    EndReason.SIGNALLED: ExitClass.SIGNAL,
    EndReason.TIME_LIMIT: ExitClass.TIME_LIMIT,
    EndReason.PREEMPTED: ExitClass.PREEMPTED,
    **dict.fromkeys(NODE_FAULTS, ExitClass.NODE_LOST),
}


def exit_class(reason: str, exit_code: int | None, reported: str | None) -> ExitClass | None:
    """Return the class of an end. `reported` by the agent, it counts only if the process ended by itself."""
    if reason in (EndReason.EXITED, EndReason.SIGNALLED) and exit_code != 0 and reported in SEEN_BY_AGENT:
        return ExitClass(reported)
    if reason == EndReason.EXITED:
        return ExitClass.USER_EXIT if exit_code else None
    return _BY_REASON.get(reason)


# If the supervisor is killed in five attempts in a row, the job itself is the cause.
MAX_SUPERVISORS_LOST = 5
# The scheduler avoids a node that lacks the user for ten minutes (nodes/health/missing_users.py), so this is slow.
MAX_WITHOUT_USER = 10
# A job whose GPU memory the server chose is retried so often with more of it, beside its own retries.
MAX_MEMORY_RETRIES = 1
LONGEST_RETRY_PAUSE_SECONDS = 3600.0
LONGEST_FAULT_PAUSE_SECONDS = 600.0


@dataclass(frozen=True)
class AttemptOutcome:
    """The end of an attempt. `reason`: an EndReason; `ended_at`: the end of its last process."""

    job_id: int
    attempt: int
    reason: str
    ended_at: datetime
    exit_code: int | None = None
    signal: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FaultStreak:
    """The consecutive attempts before one, since the last retry by a person, that ended by node faults, by the loss of
    their supervisor, and because the node lacked the user."""

    faults: int = 0
    supervisors_lost: int = 0
    without_user: int = 0


NO_STREAK = FaultStreak()


@dataclass(frozen=True)
class Transition:
    """A job's next state after an attempt. `gpu_memory_mb`: its new amount, for a retry with more; None: unchanged."""

    state: str
    reason: str
    evidence: dict[str, Any]
    retries_used: int
    eligible_at: datetime | None = None
    gpu_memory_mb: int | None = None


# A cancel replaces these orders to stop, but the process ends for the first one that it gets.
_REPLACED = (EndReason.REQUEUED, EndReason.PREEMPTED, EndReason.HELD_IDLE)


# Ends by orders that the job's row may lack: the database was restored from a backup of before the order, and the agent
# reports the end again. The evidence takes the place of the order's.
_UNDONE_BY = "an order that the restored database lacks"
_UNDONE: dict[str, dict[str, str]] = {
    EndReason.CANCELLED: {"by": _UNDONE_BY},
    EndReason.REQUEUED: {"by": _UNDONE_BY},
    EndReason.PREEMPTED: {"by": "a job", "why": "the restored database lacks"},
}


def with_undone_order(job: dict[str, Any], outcome: AttemptOutcome) -> dict[str, Any]:
    """Return the job with the order that ended its attempt, if a restore of the database has undone that order. Of a
    gang, the first rank that ended by it has stopped the other ones."""
    if job["stop_reason"] not in ("", EndReason.RANK_FAILED, EndReason.SUPERSEDED):
        return job
    if outcome.reason == EndReason.SUPERSEDED and job["requeue"]:  # a restore had undone its start
        return {**job, "stop_reason": EndReason.REQUEUED}
    if (evidence := _UNDONE.get(outcome.reason)) is None:
        return job
    return {**job, "stop_reason": outcome.reason, "stop_evidence": evidence}


def with_job_facts(outcome: AttemptOutcome, job: dict[str, Any]) -> AttemptOutcome:
    """Return the outcome with what only the job's row has: the cancel that replaced an earlier order to stop, and the
    time limit, as the job may get another one."""
    evidence, seconds = outcome.evidence, job["max_runtime_seconds"]
    if job["stop_reason"] == EndReason.CANCELLED and outcome.reason in _REPLACED:
        without_class = {name: value for name, value in evidence.items() if name != "class"}
        return replace(outcome, reason=EndReason.CANCELLED, evidence=without_class)
    if outcome.reason == EndReason.TIME_LIMIT and seconds is not None:
        return replace(outcome, evidence={**evidence, "max_runtime_minutes": round(seconds / 60, 2)})
    return outcome


def next_state(
    job: dict[str, Any], outcome: AttemptOutcome, streak: FaultStreak = NO_STREAK, raised_mb: int | None = None
) -> Transition:
    """Return the job's state after an attempt's end. `job`: its row, with `now` by the clock of the database. `streak`:
    the faults just before it. `raised_mb`: the GPU memory for a retry with more; None: there is no more."""
    used = job["retries_used"]
    if outcome.reason == EndReason.EXITED and outcome.exit_code == 0 and job["stop_reason"] != EndReason.RANK_FAILED:
        return Transition(JobState.COMPLETED, outcome.reason, outcome.evidence, used)
    if job["stop_reason"] == EndReason.CANCELLED:
        return Transition(JobState.CANCELLED, EndReason.CANCELLED, job["stop_evidence"], used)
    if job["stop_reason"] == EndReason.HELD_IDLE:
        return Transition(JobState.FAILED, EndReason.HELD_IDLE, job["stop_evidence"], used)
    if job["stop_reason"] == EndReason.PREEMPTED and not job["requeue"]:
        evidence = {**job["stop_evidence"], **_class(outcome)}
        return Transition(JobState.PREEMPTED, EndReason.PREEMPTED, evidence, used)
    if job["stop_reason"] in (EndReason.REQUEUED, EndReason.PREEMPTED):
        return Transition(JobState.PENDING, Pending.SCHEDULER_BEHIND, {}, used)
    if outcome.reason in NODE_FAULTS:
        return _after_fault(job, outcome, streak)
    if job["is_memory_auto"] and outcome.evidence.get("class") == ExitClass.CUDA_OOM:
        if job["memory_retries"] < MAX_MEMORY_RETRIES and raised_mb is not None:
            evidence = {"had_gpu_memory_mb": outcome.evidence.get("had_gpu_memory_mb"), "gpu_memory_mb": raised_mb}
            return Transition(JobState.PENDING, Pending.SCHEDULER_BEHIND, evidence, used, gpu_memory_mb=raised_mb)
        if ExitClass.CUDA_OOM not in job["retry_on"]:  # a retry with the same memory would fail again
            why = "used" if job["memory_retries"] else "no_larger_gpu"
            return Transition(JobState.FAILED, outcome.reason, {**outcome.evidence, "memory_retry": why}, used)
    if used < job["max_retries"] and _may_retry(job, outcome):
        evidence = {"retry": used + 1, "max_retries": job["max_retries"], **_class(outcome)}
        return _retry_after(job, _pause(used, LONGEST_RETRY_PAUSE_SECONDS), evidence, used + 1)
    return Transition(JobState.FAILED, outcome.reason, outcome.evidence, used)


def _may_retry(job: dict[str, Any], outcome: AttemptOutcome) -> bool:
    """Return whether a retry may help: a program that failed to start will fail again."""
    if outcome.reason == EndReason.LAUNCH_FAILED:
        return False
    return not job["retry_on"] or outcome.evidence.get("class") in job["retry_on"]


def _after_fault(job: dict[str, Any], outcome: AttemptOutcome, streak: FaultStreak) -> Transition:
    """Requeue at once after the first fault, then with growing pauses: a job that breaks nodes, or a node that fails
    every job, must not keep the cluster busy. Uses up no retry."""
    used = job["retries_used"]
    lost = streak.supervisors_lost + 1 if outcome.reason == EndReason.SUPERVISOR_LOST else 0
    if not job["requeue"]:
        return Transition(JobState.FAILED, outcome.reason, outcome.evidence, used)
    if lost >= MAX_SUPERVISORS_LOST:
        return Transition(JobState.FAILED, outcome.reason, {**outcome.evidence, "in_a_row": lost}, used)
    if outcome.reason == EndReason.NO_ACCOUNT:
        return _after_missing_user(outcome, streak, used)
    if not streak.faults:
        return Transition(JobState.PENDING, Pending.SCHEDULER_BEHIND, {}, used)
    evidence = {"fault": outcome.reason, "in_a_row": streak.faults + 1}
    return _retry_after(job, _pause(streak.faults - 1, LONGEST_FAULT_PAUSE_SECONDS), evidence, used)


def _after_missing_user(outcome: AttemptOutcome, streak: FaultStreak, used: int) -> Transition:
    """Requeue at once, since the scheduler tries another node or reports the missing user; fail after a while."""
    without = streak.without_user + 1
    if without >= MAX_WITHOUT_USER:
        return Transition(JobState.FAILED, outcome.reason, {**outcome.evidence, "in_a_row": without}, used)
    return Transition(JobState.PENDING, Pending.SCHEDULER_BEHIND, {}, used)


def _class(outcome: AttemptOutcome) -> dict[str, Any]:
    return {"class": outcome.evidence["class"]} if outcome.evidence.get("class") else {}


def _pause(doublings: int, maximum: float) -> float:
    """Return the pause in seconds. The bound on the exponent keeps the power within a float."""
    return min(settings.ENV.retry_backoff_seconds * 2.0 ** min(doublings, 100), maximum)


def _retry_after(job: dict[str, Any], pause_seconds: float, evidence: dict[str, Any], used: int) -> Transition:
    at = job["now"] + timedelta(seconds=pause_seconds)
    data = {**evidence, "at": at.isoformat(timespec="seconds")}
    return Transition(JobState.PENDING, Pending.RETRY_BACKOFF, data, used, at)


# Attempts have consecutive numbers, so that of the last other end, or of the last before a person's retry, tells the
# length of the streak. Each `max` of attempts reads the index of (job, number) backwards and stops there.
_STREAKS = """
    SELECT t.job_id,
           t.number - 1 - greatest(r.before, (SELECT max(a.number) FROM jobs_attempt a WHERE a.job_id = t.job_id
                                       AND a.number < t.number AND a.reason <> ALL(%(faults)s))) AS faults,
           t.number - 1 - greatest(r.before, (SELECT max(a.number) FROM jobs_attempt a WHERE a.job_id = t.job_id
                                       AND a.number < t.number AND a.reason <> %(lost)s)) AS supervisors_lost,
           t.number - 1 - greatest(r.before, (SELECT max(a.number) FROM jobs_attempt a WHERE a.job_id = t.job_id
                                       AND a.number < t.number AND a.reason <> %(no_user)s)) AS without_user
      FROM unnest(%(jobs)s::bigint[], %(numbers)s::int[]) AS t (job_id, number)
     CROSS JOIN LATERAL (SELECT coalesce(max(e.attempt), 0) AS before FROM jobs_jobevent e
                          WHERE e.job_id = t.job_id AND e.kind = 'retried') r
"""


def fault_streaks(outcomes: Sequence[AttemptOutcome]) -> dict[int, FaultStreak]:
    """Return {job_id: streak} for the outcomes that are node faults."""
    faulty = [o for o in outcomes if o.reason in NODE_FAULTS and o.attempt > 1]
    if not faulty:
        return {}
    params = {
        "jobs": [o.job_id for o in faulty],
        "numbers": [o.attempt for o in faulty],
        "faults": sorted(NODE_FAULTS),
        "lost": EndReason.SUPERVISOR_LOST,
        "no_user": EndReason.NO_ACCOUNT,
    }
    return {row.pop("job_id"): FaultStreak(**row) for row in query(_STREAKS, params)}
