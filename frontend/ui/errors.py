"""Error pages: what happened, what to do next, and the request id in the log."""

import logging
from collections.abc import Callable

from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from gpusched.lib.api.problems import Problem, response_for, wants_problem
from gpusched.lib.request_id import current_id

_logger = logging.getLogger(__name__)
_METHODS = ("GET", "HEAD", "POST")
_TEXTS = {
    400: ("This request is not valid", "Go back and try again."),
    403: ("You do not have access", "Ask a tenant owner or an admin for access."),
    405: ("This page does not support this action", "Go back and try again."),
    404: (
        "This page does not exist",
        "Check the address. It may also belong to a tenant that you are not a member of.",
    ),
    429: ("Too many requests", "Wait a while, then try again."),
    500: ("The server failed on this request", ""),
    503: ("The server cannot answer now", ""),
}


def page_error(request: HttpRequest, status: int, problem: Problem | None = None) -> HttpResponse:
    """Render the error page of a status; a problem replaces the default text."""
    title, step = _TEXTS[status]
    if problem is not None:
        step = " ".join(f"{part[:1].upper()}{part[1:]}." for part in (problem.detail, problem.next_step) if part)
    elif status == 500:
        step = f"{_retry_advice(request)} If it fails again, report the id below."
    return render(request, "error.html", _context(request, status, title, step), status=status)


def page_of_outage(request: HttpRequest, symptom: str, problem: Problem) -> HttpResponse:
    """Render the page for a database outage without a query, not even for the session."""
    context = _context(request, 503, f"{symptom[:1].upper()}{symptom[1:]}", _retry_advice(request))
    response = HttpResponse(render_to_string("error.html", context), status=503)
    response["Retry-After"] = str(problem.retry_after)
    return response


def _retry_advice(request: HttpRequest) -> str:
    if request.method in ("GET", "HEAD"):
        return "Try again in a moment."
    return "Your change may or may not have been applied. Check before you try again."


def _context(request: HttpRequest, status: int, title: str, step: str) -> dict[str, object]:
    retry_href = request.get_full_path() if status >= 500 and request.method == "GET" else ""
    return {"status": status, "title": title, "step": step, "request_id": current_id(), "retry_href": retry_href}


def _wrong_method(request: HttpRequest, allowed: str) -> HttpResponse:
    response = page_error(request, 405)
    response["Allow"] = allowed
    return response


class PageMethods:
    """Answer 405 for methods that no page supports. Runs before CSRF protection, which would answer 403."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, view: object, args: object, kwargs: object) -> HttpResponse | None:
        is_page = not wants_problem(request) and not request.path.startswith("/admin/")
        return _wrong_method(request, ", ".join(_METHODS)) if is_page and request.method not in _METHODS else None


class AdminAddresses:
    """Answer 400 for values in an address of Django admin with which it would fail: a NUL character, for which it would
    search PostgreSQL, a year that no date has, an invalid regular expression, or a name that is no field."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        has_nul = "\x00" in request.path or "%00" in request.META["QUERY_STRING"]
        is_refused = has_nul and request.path.startswith("/admin/")
        return page_error(request, 400) if is_refused else self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        has_values = request.method == "GET" and request.path.startswith("/admin/") and request.META["QUERY_STRING"]
        # AttributeError: autocompletion for a relation that another model defines.
        if not has_values or not isinstance(error, (ValueError, OverflowError, DataError, AttributeError)):
            return None
        _logger.warning("Django admin fails with this address: %s", request.path, exc_info=error)
        return page_error(request, 400)


class RefusalsAsPages:
    """Render a Problem that no view has handled, such as a failed login, as a page with its `Retry-After`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        is_bare = response.status_code == 405 and not response.streaming and not response.content
        return _wrong_method(request, response["Allow"]) if is_bare else response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, Problem):
            return None
        if wants_problem(request):
            return response_for(error)
        response = page_error(request, error.status if error.status in _TEXTS else 400, error)
        if error.retry_after is not None:
            response["Retry-After"] = str(error.retry_after)
        return response
