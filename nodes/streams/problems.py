"""What a client is answered when a stream is refused, or ends before both ends have finished."""

from gpusched.lib.api.problems import Problem
from gpusched.protocol.streams import Reason, Reset


def problem_of(reset: Reset) -> Problem:
    """Return the problem of a reset."""
    status, code, step = _PROBLEMS.get(reset.reason, _PROBLEMS[Reason.FAILED])
    return Problem(status, code, reset.detail or reset.reason, next_step=step)


def unreachable(subject: str) -> Problem:
    """Return a 503: the agent of a node has no WebSocket to this machine at present."""
    detail = f"the agent of the node of {subject} has no WebSocket to this server"
    step = "try again; if it stays so, a proxy in between does not pass WebSockets"
    return Problem(503, "node_unreachable", detail, next_step=step, retry_after=1)


_AGAIN = "open a new stream"
_SEE = "see the state of the job"
_PROBLEMS: dict[str, tuple[int, str, str]] = {
    Reason.NOT_LISTENING: (
        409,
        "not_listening",
        "wait until the job listens, on 127.0.0.1 or all addresses",
    ),
    Reason.NO_RANK: (409, "wrong_state", _SEE),
    Reason.UNSUPPORTED: (501, "stream_unsupported", "see docs/agent.md, Streams"),
    Reason.TOO_MANY: (429, "too_many_job_streams", "close streams that you no longer need"),
    Reason.BROKEN: (502, "stream_broken", "read the job's log"),
    Reason.RANK_ENDED: (410, "rank_ended", _SEE),
    Reason.AGENT_LOST: (503, "node_unreachable", _AGAIN),
    Reason.SERVER_LOST: (503, "node_unreachable", _AGAIN),
    Reason.CLOSED: (410, "rank_ended", _AGAIN),
    Reason.NOT_ALLOWED: (403, "not_permitted", "ask an owner of the tenant"),
    Reason.VIOLATION: (502, "stream_broken", _AGAIN),
    Reason.FAILED: (502, "stream_broken", "see the log of the node's agent"),
}
