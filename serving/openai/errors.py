"""Errors in the form of the OpenAI API, which its clients understand."""

from collections.abc import Mapping

import msgspec
from django.http import HttpResponse

from gpusched.lib.api.problems import Problem

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
# Its clients repeat a request after 409, which would not help with an endpoint that drains.
_STATUSES = {"endpoint_draining": 503}


def error_response(
    status: int, code: str, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    """Return an error; `code` is gpusched's, `param` the wrong field."""
    kind = _TYPES.get(status)
    if kind is None:
        kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    body = msgspec.json.encode({"error": error})
    return HttpResponse(body, status=status, content_type="application/json", headers=dict(headers or {}))


def error_of(problem: Problem, param: str | None = None) -> HttpResponse:
    """Return a problem in this form. Its next step is a part of the message."""
    step = f" ({problem.next_step})" if problem.next_step else ""
    headers = dict(problem.headers)
    if problem.retry_after is not None:
        headers["Retry-After"] = str(problem.retry_after)
    if param is None and problem.errors:
        param = problem.errors[0].field
    status = _STATUSES.get(problem.code, problem.status)
    return error_response(status, problem.code, f"{problem.detail}{step}", param=param, headers=headers)
