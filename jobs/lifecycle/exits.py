"""Of what class the end of an attempt is: what its agent saw, or what follows from the reason and the exit code."""

from gpusched.protocol.exits import SEEN_BY_AGENT, ExitClass
from gpusched.protocol.reasons import NODE_FAULTS, EndReason

_BY_REASON: dict[str, ExitClass] = {
    EndReason.SIGNALLED: ExitClass.SIGNAL,
    EndReason.TIME_LIMIT: ExitClass.TIME_LIMIT,
    EndReason.PREEMPTED: ExitClass.PREEMPTED,
    **dict.fromkeys(NODE_FAULTS, ExitClass.NODE_LOST),
}


def exit_class(reason: str, exit_code: int | None, seen: str | None) -> ExitClass | None:
    """`seen`: what the agent told, believed only of an end that the process came to by itself."""
    if reason in (EndReason.EXITED, EndReason.SIGNALLED) and exit_code != 0 and seen in SEEN_BY_AGENT:
        return ExitClass(seen)
    if reason == EndReason.EXITED:
        return ExitClass.USER_EXIT if exit_code else None
    return _BY_REASON.get(reason)
