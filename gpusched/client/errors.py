"""All that can go wrong, as exceptions that mirror the exit codes of the CLI, and which one an answer means."""

from collections.abc import Sequence

import msgspec


class QueueWarning(UserWarning):
    """A submit was accepted, and a limit of the queue is nearly reached."""


class FieldProblem(msgspec.Struct, frozen=True):
    """One field of a request that the server refused."""

    field: str = ""
    code: str = ""
    message: str = ""


class GpuschedError(Exception):
    """Any failure. `str()` is one sentence; `next_step` says what can be done; `code` is the server's word for it."""

    exit_code = 1

    def __init__(
        self,
        sentence: str,
        *,
        next_step: str = "",
        code: str = "",
        status: int | None = None,
        request_id: str = "",
        errors: Sequence[FieldProblem] = (),
    ) -> None:
        super().__init__(sentence)
        self.next_step, self.code, self.status = next_step, code, status
        self.request_id, self.errors = request_id, tuple(errors)


class ServerError(GpuschedError):
    """Any other error: the server failed, or what answered is no gpusched server."""


class Invalid(GpuschedError):
    """Wrong usage, or an invalid request; `errors` names the fields."""

    exit_code = 2


class NotFound(GpuschedError):
    """There is no such thing, or you may not see it."""

    exit_code = 3


class NotPermitted(GpuschedError):
    """Not logged in, or not allowed."""

    exit_code = 4


class Conflict(GpuschedError):
    """The thing is not in a state that allows this, or somebody else changed it meanwhile."""

    exit_code = 5


class NeverFits(GpuschedError):
    """The job can never run: larger than any node or than its tenant's limit, or after a job that ended otherwise."""

    exit_code = 6


class Timeout(GpuschedError, TimeoutError):
    """What was waited for did not happen in time."""

    exit_code = 7


class Unreachable(GpuschedError, ConnectionError):
    """No answer from the server, also after trying again."""

    exit_code = 8


class RateLimited(GpuschedError):
    """For now: too many requests, the queue is full, or the budget of the tenant is used up until it is renewed."""

    exit_code = 9


_BY_CODE: dict[str, type[GpuschedError]] = {
    "never_fits": NeverFits,
    "tenant_limit": NeverFits,
    "quota_exceeded": NeverFits,
    "dependency_failed": NeverFits,
    "budget_used_up": RateLimited,
}

_BY_STATUS: dict[int, type[GpuschedError]] = {
    401: NotPermitted,
    403: NotPermitted,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    429: RateLimited,
    502: Unreachable,
    503: Unreachable,
    504: Unreachable,
}


class _Problem(msgspec.Struct):
    """RFC 9457 problem+json. `error` is the fall-back of simple endpoints."""

    detail: str = ""
    title: str = ""
    error: str = ""
    code: str = ""
    next_step: str = ""
    request_id: str = ""
    errors: list[FieldProblem] = []


def from_answer(status: int, body: bytes, asked: str) -> GpuschedError:
    """The exception that a refusing answer stands for. `asked` ("GET /…") is named if the body says nothing."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = _Problem()
    sentence = problem.detail or problem.error or problem.title
    next_step = problem.next_step
    if not sentence:
        sentence = f"the server answered {status} to {asked} without saying why"
        next_step = "check that the URL is the one of a gpusched server"
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(status) or (Invalid if 400 <= status < 500 else ServerError)
    return kind(
        sentence,
        next_step=next_step,
        code=problem.code,
        status=status,
        request_id=problem.request_id,
        errors=problem.errors,
    )
