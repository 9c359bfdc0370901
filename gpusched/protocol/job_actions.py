"""The actions allowed on a job by state: the one table that pages, their script and services share."""

from collections.abc import Mapping

from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import WAITING, JobState

# Of a job without elements; a completed one cannot be retried.
RETRIABLE_STATES = (JobState.FAILED, JobState.PREEMPTED, JobState.CANCELLED)
_PLACED = (JobState.SCHEDULED, JobState.RUNNING)
_WAITING = tuple(sorted(WAITING, reverse=True))

# verb → the states of a job, and those of an array, in which it is allowed.
STATES: Mapping[str, tuple[tuple[JobState, ...], tuple[JobState, ...]]] = {
    "hold": ((JobState.PENDING,), (JobState.PENDING, JobState.RUNNING)),
    "release": ((JobState.HELD,), (JobState.HELD,)),
    "requeue": (_PLACED, ()),
    "retry": (RETRIABLE_STATES, (JobState.FAILED,)),
    "extend": ((*_WAITING, *_PLACED), (*_WAITING, *_PLACED)),
    "cancel": ((*_WAITING, *_PLACED, JobState.STOPPING), (*_WAITING, *_PLACED)),
}
# verb → the reason that forbids it even so. Only admins release what an admin holds.
EXCEPT: Mapping[str, str] = {"release": Pending.HELD_BY_ADMIN, "cancel": EndReason.CANCELLED}
FOR_ADMINS_ALWAYS = frozenset({"release"})


def allowed_actions(state: str, reason: str, *, is_array: bool, is_admin: bool) -> list[str]:
    """Return the verbs allowed on a job. `reason`: the code of its state's reason; of a stopping job, why it is
    stopped."""
    return [
        verb
        for verb, states in STATES.items()
        if state in states[is_array] and (EXCEPT.get(verb) != reason or (is_admin and verb in FOR_ADMINS_ALWAYS))
    ]
