"""What follows when an attempt has ended: done, failed, cancelled, or back to the queue. The rule alone, no writing."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone

from gpusched.protocol.reasons import NODE_FAULTS, EndReason, Pending
from gpusched.protocol.states import JobState


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. `reason`: an EndReason; `ended_at`: when its last process was gone."""

    job_id: int
    attempt: int
    reason: str
    ended_at: datetime
    exit_code: int | None = None
    signal: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Next:
    """What a job becomes after an attempt."""

    state: str
    reason: str
    evidence: dict[str, Any]
    retries_used: int
    eligible_at: datetime | None = None


def what_follows(job: dict[str, Any], outcome: Outcome) -> Next:
    """The rule of what follows an attempt's end; pure."""
    used = job["retries_used"]
    if outcome.reason == EndReason.EXITED and outcome.exit_code == 0 and job["stop_reason"] != EndReason.RANK_FAILED:
        return Next(JobState.COMPLETED, outcome.reason, outcome.evidence, used)
    if job["stop_reason"] == EndReason.CANCELLED:
        return Next(JobState.CANCELLED, EndReason.CANCELLED, job["stop_evidence"], used)
    if job["stop_reason"] == EndReason.PREEMPTED and not job["requeue"]:
        return Next(JobState.PREEMPTED, EndReason.PREEMPTED, job["stop_evidence"], used)
    if job["stop_reason"] in (EndReason.REQUEUED, EndReason.PREEMPTED):
        return Next(JobState.PENDING, Pending.SCHEDULER_BEHIND, {}, used)
    if outcome.reason in NODE_FAULTS:
        if job["requeue"]:
            return Next(JobState.PENDING, Pending.SCHEDULER_BEHIND, {}, used)
    elif used < job["max_retries"]:
        pause = settings.ENV.retry_backoff_seconds * 2**used
        at = timezone.now() + timedelta(seconds=min(pause, 3600))
        evidence = {"retry": used + 1, "max_retries": job["max_retries"], "at": at.isoformat(timespec="seconds")}
        return Next(JobState.PENDING, Pending.RETRY_BACKOFF, evidence, used + 1, at)
    return Next(JobState.FAILED, outcome.reason, outcome.evidence, used)
