"""Present the engine's reasons, changes and estimates in the structures and sentences of the API."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from gpusched.protocol import reasons
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import JobState
from scheduling.engine.explain.explain import timestamp
from scheduling.engine.model import Reason
from scheduling.engine.whatif.blockers import Blocker
from scheduling.engine.whatif.changes import Change
from scheduling.engine.whatif.estimate import Estimate

# Maximum blockers that an estimate names.
MAX_BLOCKERS = 3


def present_reason(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "sentence": reasons.sentence(reason.code, reason.evidence),
        "next_step": reasons.next_step(reason.code, reason.evidence),
        "evidence": dict(reason.evidence),
    }


def present_change(
    change: Change, *, starts: bool, then: Reason | None = None, own_jobs: Collection[int] = ()
) -> dict[str, Any]:
    """Present a change. `then`: the reason that the job would then wait for. `own_jobs`: jobs that can be named."""
    following = reasons.sentence(then.code, then.evidence) if then else ""
    named = [job_id for job_id in change.jobs if job_id in own_jobs] or change.names
    return {
        "change": change.change,
        "to": change.to,
        **({"dimension": change.dimension} if change.dimension else {}),
        "starts": starts,
        "sentence": reasons.change_sentence(change.change, change.to, change.dimension, following, named),
    }


def present_estimate(
    estimate: Estimate, blockers: Sequence[Blocker] | None = None, visible: Collection[int] | None = ()
) -> dict[str, Any]:
    """Present an estimate. `blockers`: the jobs whose end it depends on, None if not computed. The first three of the
    `visible` tenants (None: all) are named."""
    total = len(blockers or ())
    visible_ids = [blocker.job_id for blocker in blockers or () if visible is None or blocker.tenant_id in visible]
    named = list(dict.fromkeys(visible_ids))[:MAX_BLOCKERS]
    moments = {"p50_at": estimate.p50_at, "p90_at": estimate.p90_at, "later_than": estimate.after}
    return {
        **{name: None if at is None else timestamp(at) for name, at in moments.items()},
        "waits_for": {"jobs_ending": estimate.jobs_ending, "jobs_starting": estimate.jobs_starting},
        "blockers": named,
        "more_blockers": total - len(named),
        "sentence": _estimate_sentence(estimate, reasons.listed_jobs(named, total) if total else ""),
    }


_WITHOUT_ESTIMATE = {
    str(Pending.DEPENDENCY): "it waits for other jobs to end first",
    str(Pending.MAX_PARALLEL): "it waits for elements of its own array to end",
    str(Pending.SCHEDULER_BEHIND): "the scheduler has not looked at it yet",
}


def why_no_estimate(state: str, code: str | None) -> str | None:
    """Return why there is no estimate for a job in this state with this reason; None if there may be one."""
    if state == JobState.HELD:
        return "no estimate: it is held"
    reason = _WITHOUT_ESTIMATE.get(code or "")
    return reason and f"no estimate: {reason}"


def _estimate_sentence(estimate: Estimate, blockers: str) -> str:
    if estimate.p90_at is not None:
        first = _moment(estimate.p90_at if estimate.p50_at is None else estimate.p50_at)
        last = _moment(estimate.p90_at)
        when = f"starts at about {last}" if first == last else f"starts between {first} and {last}"
        return reasons.fix_plurals(f"{when}, after the end of {blockers}") if blockers else when
    if estimate.after is not None:
        return f"starts later than {_moment(estimate.after)}"
    if estimate.unlimited:
        jobs = "1 running job has" if estimate.unlimited == 1 else f"{estimate.unlimited} running jobs have"
        return f"no estimate: {jobs} no time limit"
    return "no estimate: what it waits for does not end by itself"


def _moment(at: float) -> str:
    """Format to the minute, the precision of an estimate, with the day: pages convert it to the viewer's time zone."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
