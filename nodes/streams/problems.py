"""The problems of streams that are refused, or end before both ends have finished."""

from collections.abc import Callable

from gpusched.lib.api.problems import Problem
from gpusched.protocol.streams import Reason, Reset


def problem_of(reset: Reset) -> Problem:
    """Return the problem of a reset."""
    return _PROBLEMS.get(reset.reason, _failed)(reset.detail or reset.reason)


def unreachable(subject: str) -> Problem:
    """Return a 503: the agent of a node has no WebSocket to this head, or one that it knows, at present."""
    detail = f"the agent of the node of {subject} has no WebSocket to this server"
    step = "try again; if it stays so, a proxy in between does not pass WebSockets"
    return Problem(503, "node_unreachable", detail, next_step=step, retry_after=1)


def _not_listening(detail: str) -> Problem:
    step = "wait until the job listens, on 127.0.0.1 or all addresses"
    return Problem(409, "not_listening", detail, next_step=step)


def _lost(detail: str) -> Problem:
    return Problem(503, "node_unreachable", detail, next_step="open a new stream", retry_after=1)


def _failed(detail: str) -> Problem:
    return Problem(502, "stream_broken", detail, next_step="see the log of the node's agent, and open a new stream")


_PROBLEMS: dict[str, Callable[[str], Problem]] = {
    Reason.NOT_LISTENING: _not_listening,
    Reason.NO_RANK: lambda detail: Problem(409, "wrong_state", detail, next_step="see the state of the job"),
    Reason.UNSUPPORTED: lambda detail: Problem(
        501, "stream_unsupported", detail, next_step="see docs/agent.md, Streams"
    ),
    Reason.TOO_MANY: lambda detail: Problem(
        429, "too_many_job_streams", detail, next_step="close streams that you no longer need", retry_after=5
    ),
    Reason.BROKEN: lambda detail: Problem(502, "stream_broken", detail, next_step="read the job's log"),
    Reason.RANK_ENDED: lambda detail: Problem(410, "rank_ended", detail, next_step="see the state of the job"),
    Reason.AGENT_LOST: _lost,
    Reason.SERVER_LOST: _lost,
}
