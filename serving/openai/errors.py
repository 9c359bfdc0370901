"""Errors in the form of the OpenAI API, which its clients understand."""

from collections.abc import Mapping

import msgspec
from django.http import HttpResponse

from gpusched.lib.api.problems import Problem

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def error_response(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Return an error; `code` is gpusched's."""
    kind = _TYPES.get(status, "rate_limit_error" if status == 429 else "server_error")
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = msgspec.json.encode({"error": error})
    return HttpResponse(body, status=status, content_type="application/json", headers=dict(headers or {}))


def error_of(problem: Problem) -> HttpResponse:
    """Return a problem in this form. Its next step is a part of the message."""
    step = f" ({problem.next_step})" if problem.next_step else ""
    headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
    return error_response(problem.status, problem.code, f"{problem.detail}{step}", headers)
