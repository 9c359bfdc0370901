"""The format of every error: RFC 9457 problem+json with a code, the next step, and the wrong fields."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from rest_framework import exceptions
from rest_framework.response import Response

from gpusched.lib.db import outages
from gpusched.lib.request_id import current_id
from gpusched.protocol.job_request import FieldError

T = TypeVar("T")
logger = logging.getLogger(__name__)
# During an outage of the database. A restart takes a second or two.
RETRY_AFTER_SECONDS = 1


class Problem(Exception):
    """An error for the caller. `next_step` names what the caller can do about it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        next_step: str = "",
        errors: Sequence[FieldError] = (),
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.next_step, self.errors = next_step, tuple(errors)
        self.retry_after = retry_after  # seconds
        self.headers = {**(headers or {}), **({} if retry_after is None else {"Retry-After": str(retry_after)})}


def not_found(subject: str, next_step: str = "check the id") -> Problem:
    """Return a 404: the same for what does not exist and for what the caller may not see."""
    return Problem(404, "not_found", f"there is no {subject}, or you may not see it", next_step=next_step)


def still_there(rows: Sequence[T], subject: str) -> T:
    """Return the only row of an object that was found before; raise a 404 if it was removed meanwhile."""
    if not rows:
        raise not_found(subject)
    [row] = rows
    return row


def invalid(errors: Sequence[FieldError], *, at_most: int | None = None) -> Problem:
    """Return a 400 with every wrong field; the detail names the first. `at_most`: the check stops at this many errors,
    so that there may be more."""
    errors, first = errors[:at_most], errors[0]
    least = "at least " if len(errors) == at_most else ""
    more = f" (and {least}{len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = f"{first.field}: {first.message}{more}" if first.field else first.message + more
    return Problem(400, "invalid", detail, next_step="correct the fields named in errors", errors=errors)


def too_large(max_bytes: int | None = None) -> Problem:
    """Return a 413 for a body. `max_bytes` None: the limit of most bodies."""
    maximum = (max_bytes or settings.DATA_UPLOAD_MAX_MEMORY_SIZE) >> 20
    return Problem(413, "too_large", f"the body has more than {maximum} MiB", next_step="send less at once")


def database_unavailable(request: HttpRequest, error: BaseException | None) -> Problem:
    """Return a 503 for a request that failed with this temporary error of the database."""
    outcome, next_step = outages.outcome(request)
    detail = f"{outages.symptom(error)}{outcome}"
    return Problem(503, "database_unavailable", detail, next_step=next_step, retry_after=RETRY_AFTER_SECONDS)


def database_away() -> Problem:
    """Return a 503 for a read or a stream during an outage of the database: trying again is safe."""
    detail = "the database does not answer"
    return Problem(503, "database_unavailable", detail, next_step="try again", retry_after=RETRY_AFTER_SECONDS)


def not_allowed(*methods: str) -> HttpResponse:
    """Return a 405 that names the allowed methods."""
    response = response_for(_wrong_method(methods))
    response["Allow"] = ", ".join(methods)
    return response


def _wrong_method(methods: Sequence[str]) -> Problem:
    allowed = " or ".join(methods)
    return Problem(405, "method_not_allowed", f"use {allowed} here", next_step=f"use {allowed}")


_TITLES = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Not permitted",
    404: "Not found",
    405: "Method not allowed",
    406: "Not acceptable",
    409: "Conflict",
    410: "Gone",
    412: "Precondition failed",
    413: "Too large",
    414: "Address too long",
    415: "Unsupported media type",
    422: "Cannot ever run",
    429: "Too many",
    431: "Headers too long",
    500: "Internal error",
    501: "Not supported",
    502: "Broken",
    503: "Not available",
}


def body(problem: Problem) -> dict[str, Any]:
    return {
        "type": f"urn:gpusched:problem:{problem.code}",
        "title": _TITLES.get(problem.status, "Error"),
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        "next_step": problem.next_step,
        "request_id": current_id(),
        "errors": [{"field": e.field, "code": e.code, "message": e.message} for e in problem.errors],
        "error": problem.detail,
    }


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """Handle DRF's exceptions. None passes an unexpected error on to Django's handler."""
    if isinstance(error, exceptions.MethodNotAllowed):
        methods = [method for method in context["view"].allowed_methods if method not in ("HEAD", "OPTIONS")]
        problem: Problem | None = _wrong_method(methods)
    else:
        problem = as_problem(error)
    if problem is None:
        return None
    response = Response(
        body(problem), status=problem.status, content_type="application/problem+json", headers=problem.headers
    )
    if isinstance(error, exceptions.APIException):
        if header := getattr(error, "auth_header", None):
            response["WWW-Authenticate"] = header
        if wait := getattr(error, "wait", None):
            response["Retry-After"] = str(int(wait))
    return response


def as_problem(error: Exception) -> Problem | None:
    """Return the problem of an exception of a view; None for an unexpected one."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Http404):
        return not_found("such thing")
    if isinstance(error, PermissionDenied):
        return Problem(403, "not_permitted", str(error) or "you may not do this", next_step="ask an owner or an admin")
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        return Problem(401, "not_authenticated", str(error.detail), next_step="send Authorization: Bearer <token>")
    if isinstance(error, exceptions.PermissionDenied):
        return Problem(403, "not_permitted", str(error.detail), next_step="ask an owner or an admin")
    if isinstance(error, exceptions.APIException):
        codes = error.get_codes()
        code, step = codes if isinstance(codes, str) else "invalid", _NEXT_STEPS.get(type(error), "correct the request")
        return Problem(error.status_code, code, _flat(error.detail), next_step=step)
    return None


_NEXT_STEPS: dict[type[exceptions.APIException], str] = {
    exceptions.UnsupportedMediaType: "send it with Content-Type: application/json",
    exceptions.NotAcceptable: "send Accept: application/json, or none",
}


def _flat(detail: Any) -> str:
    if isinstance(detail, dict):
        return "; ".join(f"{key}: {_flat(value)}" for key, value in detail.items())
    if isinstance(detail, list):
        return "; ".join(_flat(item) for item in detail)
    return str(detail)


def response_for(problem: Problem) -> HttpResponse:
    """Return the problem as a response outside of DRF."""
    text = msgspec.json.encode(body(problem))
    return HttpResponse(text, status=problem.status, content_type="application/problem+json", headers=problem.headers)


def wants_problem(request: HttpRequest) -> bool:
    return request.path.startswith(("/api/", "/v1/", "/mcp", "/agent/", "/health", "/ready", "/metrics"))
