"""What may be done to a job in which states: the one table to which pages, their script and services are held."""

from collections.abc import Mapping

from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.states import WAITING, JobState

# Of a job without elements; one that completed has nothing to try again.
RETRIABLE_STATES = (JobState.FAILED, JobState.PREEMPTED, JobState.CANCELLED)
_PLACED = (JobState.SCHEDULED, JobState.RUNNING)
_WAITING = tuple(sorted(WAITING, reverse=True))

# verb → the states of a job, and those of an array, to which it can be done.
STATES: Mapping[str, tuple[tuple[JobState, ...], tuple[JobState, ...]]] = {
    "hold": ((JobState.PENDING,), (JobState.PENDING, JobState.RUNNING)),
    "release": ((JobState.HELD,), (JobState.HELD,)),
    "requeue": (_PLACED, ()),
    "retry": (RETRIABLE_STATES, (JobState.FAILED,)),
    "extend": ((*_WAITING, *_PLACED), (*_WAITING, *_PLACED)),
    "cancel": ((*_WAITING, *_PLACED, JobState.STOPPING), (*_WAITING, *_PLACED)),
}
# verb → the reason for which it cannot be done all the same. What an admin holds, an admin releases.
EXCEPT: Mapping[str, str] = {"release": Pending.HELD_BY_ADMIN, "cancel": EndReason.CANCELLED}
FOR_ADMINS_ALWAYS = frozenset({"release"})


def allowed_actions(state: str, reason: str, *, is_array: bool, is_admin: bool) -> list[str]:
    """The verbs that fit a job; `reason`: the code of why it is where it is, of a stopping job why it is stopped."""
    return [
        verb
        for verb, states in STATES.items()
        if state in states[is_array] and (EXCEPT.get(verb) != reason or (is_admin and verb in FOR_ADMINS_ALWAYS))
    ]
