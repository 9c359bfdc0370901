"""What a person may do to a job in the state that it is in, and what does it; the services check again."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gpusched.protocol import job_actions
from jobs.actions import job_actions as actions_job_actions
from tenants.auth.identity import Identity

# By its verb, what is done to a job as a whole; extending it takes more than a word.
ACTS: Mapping[str, Callable[[int, Identity], str]] = {
    "cancel": actions_job_actions.cancel,
    "hold": actions_job_actions.hold,
    "release": actions_job_actions.release,
    "requeue": actions_job_actions.requeue,
    "retry": actions_job_actions.retry,
}

# What ends the processes of a job that runs.
STOPPING = ("cancel", "requeue")


def perform(verb: str, job_id: int, who: Identity, if_state: Collection[str] | None = None) -> str:
    """Does it, and says so. `if_state`: a cancel is meant only for a job in one of these."""
    if verb == "cancel":
        return actions_job_actions.cancel(job_id, who, if_state=if_state)
    return ACTS[verb](job_id, who)


def can_act(row: Mapping[str, Any], who: Identity) -> bool:
    """Their own jobs; any of a tenant as its owner."""
    return who.has(who.role_for(row["user_id"]), row["tenant_id"])


def actions_for(row: Mapping[str, Any], who: Identity) -> list[str]:
    """`row`: `user_id tenant_id state reason stop_reason array_count` of the job."""
    if not can_act(row, who):
        return []
    reason, is_array = row["stop_reason"] or row["reason"], row["array_count"] is not None
    return job_actions.allowed_actions(row["state"], reason, is_array=is_array, is_admin=who.is_admin)
