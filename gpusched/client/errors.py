"""The client's exceptions, which mirror the exit codes of the CLI, and their mapping from answers."""

from collections.abc import Sequence

import msgspec


class QueueWarning(UserWarning):
    """The server accepted a submit, and a limit of the queue is nearly reached."""


class FieldProblem(msgspec.Struct, frozen=True):
    """A field of a request that the server refused."""

    field: str = ""
    code: str = ""
    message: str = ""


class GpuschedError(Exception):
    """Any failure. `str()` is one sentence; `next_step` says what to do; `code` is the server's code of the problem."""

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
    """Any other error: the server failed, or the answer did not come from a gpusched server."""


class Invalid(GpuschedError):
    """Wrong usage, or an invalid request; `errors` names the fields."""

    exit_code = 2


class NotFound(GpuschedError):
    """The object does not exist, or you cannot see it."""

    exit_code = 3


class NotPermitted(GpuschedError):
    """Not logged in, or not allowed."""

    exit_code = 4


class Conflict(GpuschedError):
    """The object's state does not allow this, or it was changed meanwhile."""

    exit_code = 5


class NeverFits(GpuschedError):
    """The job can never run: it exceeds every node or its tenant's limit, or a job that it depends on ended
    differently."""

    exit_code = 6


class Timeout(GpuschedError, TimeoutError):
    """The awaited event did not happen in time."""

    exit_code = 7


class TaskFailed(GpuschedError):
    """A task ended without a result."""

    exit_code = 1


class Unreachable(GpuschedError, ConnectionError):
    """The server did not answer, even after retries."""

    exit_code = 8


class RateLimited(GpuschedError):
    """A temporary refusal: too many requests, a full queue, or a tenant's budget that is used up until its renewal."""

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


# What to do about an answer without a reason, by its status. The server gives a reason, a proxy none.
_OF_OTHERS = "check that the URL is a gpusched server's"
_OF_PROXIES: dict[int, str] = {
    407: "name the user and the password in the URL of the proxy (HTTP_PROXY), or except the server (NO_PROXY)",
    413: "send less at once, or raise the limit of the proxy in front of the server (client_max_body_size of nginx)",
    **dict.fromkeys((502, 503, 504), "check that the server runs, and that the proxy in front of it reaches it"),
}


class _Problem(msgspec.Struct):
    """RFC 9457 problem+json. `error` is the fallback of simple endpoints."""

    detail: str = ""
    title: str = ""
    error: str = ""
    code: str = ""
    next_step: str = ""
    request_id: str = ""
    errors: list[FieldProblem] = []


def from_answer(status: int, body: bytes, call: str) -> GpuschedError:
    """Return the exception for a refusing answer. `call` ("GET /…") is named if the body has no sentence."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        problem = _Problem()
    sentence = problem.detail or problem.error or problem.title
    next_step = problem.next_step
    if not sentence:
        sentence = f"the server answered {status} to {call} without a reason"
        # So nginx and Caddy answer a request over plain HTTP.
        has_tls = status == 400 and b" HTTPS " in body
        next_step = "use https:// in the URL" if has_tls else _OF_PROXIES.get(status, _OF_OTHERS)
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(status) or (Invalid if 400 <= status < 500 else ServerError)
    return kind(
        sentence,
        next_step=next_step,
        code=problem.code,
        status=status,
        request_id=problem.request_id,
        errors=problem.errors,
    )
