"""Actions on jobs: which ones a user can perform in a job's state, and their services, which check again."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gpusched.protocol import job_actions
from jobs.actions import job_actions as actions_job_actions
from tenants.auth.identity import Identity

# By verb. An extension needs a parameter, so it is not here.
ACTS: Mapping[str, Callable[[int, Identity], str]] = {
    "cancel": actions_job_actions.cancel,
    "hold": actions_job_actions.hold,
    "release": actions_job_actions.release,
    "requeue": actions_job_actions.requeue,
    "retry": actions_job_actions.retry,
}

# Verbs that stop the processes of a running job.
STOPPING = ("cancel", "requeue")


def perform(verb: str, job_id: int, identity: Identity, if_state: Collection[str] | None = None) -> str:
    """Perform the action and return its sentence. `if_state`: cancel only if the job is in one of these states."""
    if verb == "cancel":
        return actions_job_actions.cancel(job_id, identity, if_state=if_state)
    return ACTS[verb](job_id, identity)


def can_act(row: Mapping[str, Any], identity: Identity) -> bool:
    """Return whether the caller is the submitter or an owner of the tenant."""
    return identity.may_act_for(row["user_id"], row["tenant_id"])


def actions_for(row: Mapping[str, Any], identity: Identity) -> list[str]:
    """Return the verbs for a job, from its `user_id tenant_id state reason stop_reason array_count`."""
    if not can_act(row, identity):
        return []
    reason, is_array = row["stop_reason"] or row["reason"], row["array_count"] is not None
    return job_actions.allowed_actions(row["state"], reason, is_array=is_array, is_admin=identity.is_admin)
