"""Puts what the engine says of reasons, changes and estimates into the shapes and sentences of the API."""

from datetime import UTC, datetime
from typing import Any

from gpusched.protocol import reasons
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import JobState
from scheduling.engine.changes import Change
from scheduling.engine.estimate import Estimate
from scheduling.engine.explain import timestamp
from scheduling.engine.model import Reason


def reason_shape(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "sentence": reasons.sentence(reason.code, reason.evidence),
        "next_step": reasons.next_step(reason.code),
        "evidence": dict(reason.evidence),
    }


def change_shape(change: Change, *, starts: bool, then: Reason | None = None) -> dict[str, Any]:
    """`then`: what the job would wait for instead."""
    following = reasons.sentence(then.code, then.evidence) if then else ""
    return {
        "change": change.change,
        "to": change.to,
        **({"dimension": change.dimension} if change.dimension else {}),
        "starts": starts,
        "sentence": reasons.change_sentence(change.change, change.to, change.dimension, following),
    }


def estimate_shape(estimate: Estimate) -> dict[str, Any]:
    moments = {"p50_at": estimate.p50_at, "p90_at": estimate.p90_at, "later_than": estimate.after}
    return {
        **{name: None if at is None else timestamp(at) for name, at in moments.items()},
        "waits_for": {"jobs_ending": estimate.jobs_ending, "jobs_starting": estimate.jobs_starting},
        "sentence": _estimate_sentence(estimate),
    }


_NOBODY_KNOWS = {
    str(Pending.DEPENDENCY): "it waits for other jobs to end first",
    str(Pending.MAX_PARALLEL): "it waits for elements of its own array to end",
    str(Pending.SCHEDULER_BEHIND): "the scheduler has not looked at it yet",
}


def why_no_estimate(state: str, code: str | None) -> str | None:
    """Why nobody can say when a job of this state, that waits for this reason, starts; None: somebody may."""
    if state == JobState.HELD:
        return "no estimate: it is held"
    said = _NOBODY_KNOWS.get(code or "")
    return said and f"no estimate: {said}"


def _estimate_sentence(estimate: Estimate) -> str:
    if estimate.p90_at is not None:
        first = _moment(estimate.p90_at if estimate.p50_at is None else estimate.p50_at)
        last = _moment(estimate.p90_at)
        when = f"starts at about {last}" if first == last else f"starts between {first} and {last}"
        jobs = "1 job has" if estimate.jobs_ending == 1 else f"{estimate.jobs_ending} jobs have"
        after = f", once {jobs} ended" if estimate.jobs_ending else ""
        before = f" and {estimate.jobs_starting} others have started" if after and estimate.jobs_starting else ""
        return f"{when}{after}{before}"
    if estimate.after is not None:
        return f"starts later than {_moment(estimate.after)}"
    if estimate.unlimited:
        jobs = "1 running job has" if estimate.unlimited == 1 else f"{estimate.unlimited} running jobs have"
        return f"no estimate: {jobs} no time limit"
    return "no estimate: what it waits for does not end by itself"


def _moment(at: float) -> str:
    """To the minute, as an estimate knows no better, and each with its day: pages say it by the clock of who looks."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
