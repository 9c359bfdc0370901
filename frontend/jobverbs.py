"""What a person may do to a job in the state that it is in; the services check again."""

from typing import Any

from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import FINAL, WAITING, JobState, Role
from jobs.retrying import RETRIED
from tenants.permissions import Identity


def can_act(row: dict[str, Any], who: Identity) -> bool:
    """Their own jobs; any of a tenant as its owner."""
    return who.has(Role.MEMBER if row["user_id"] == who.user_id else Role.OWNER, row["tenant_id"])


def verbs_of(row: dict[str, Any], who: Identity) -> list[str]:
    """`row`: `user_id tenant_id state reason array_count` of the job."""
    if not can_act(row, who):
        return []
    state, is_array = row["state"], row["array_count"] is not None
    fits = {
        "hold": state == JobState.PENDING or (is_array and state == JobState.RUNNING),
        "release": state == JobState.HELD and (who.is_admin or row["reason"] != Pending.HELD_BY_ADMIN),
        "requeue": state in (JobState.SCHEDULED, JobState.RUNNING) and not is_array,
        "retry": state == JobState.FAILED if is_array else state in RETRIED,
        "extend": state in WAITING or state in (JobState.SCHEDULED, JobState.RUNNING),
        "cancel": state not in FINAL and (state in WAITING or row["state"] != JobState.STOPPING),
    }
    return [verb for verb, is_possible in fits.items() if is_possible]
