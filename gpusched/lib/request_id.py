"""Give each HTTP request an id for its answer, its errors and the log, and trace it."""

import contextvars
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

from gpusched import tracing
from gpusched.json_log import JsonLines as Lines
from gpusched.json_log import job_fields

logger = logging.getLogger(__name__)
HEADER = "X-Request-Id"
_current: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="")
_job_ids: contextvars.ContextVar[tuple[int, ...]] = contextvars.ContextVar("concerned", default=())
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_ACCEPTED = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


def current_id() -> str:
    """Return the id of the request being served, or an empty string outside of one."""
    return _current.get()


def traceparent() -> str:
    """Return the W3C trace context of the request being served: of its span, or without traces of its caller."""
    return tracing.traceparent() or tracing.checked(_caller.get())


def log_job_ids(job_ids: Iterable[int]) -> None:
    """Set the jobs of the request being served, for its line in the log. A job in its address need not be set."""
    _job_ids.set(tuple(job_ids))


@sync_only_middleware
def request_id(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Set the request's id. Use a well-formed id from a proxy, so that one id names the request everywhere."""

    is_logged = settings.ENV.log_format == "json"

    def middleware(request: HttpRequest) -> HttpResponse:
        header = request.headers.get(HEADER, "")
        _job_ids.set(())
        _caller.set(request.headers.get("traceparent", ""))
        _current.set(header if _ACCEPTED.match(header) else uuid.uuid4().hex[:16])
        if request.path_info.startswith("/api/"):
            # Many HTTP clients add a slash to the end of an address.
            request.path_info = request.path_info.rstrip("/")
        began = time.perf_counter()
        with tracing.span("HTTP", request=request.headers) as is_traced:
            response = get_response(request)
            if is_traced:
                _describe(request, response)
        if is_logged:
            _log_request(request, response, began)
        response[HEADER] = _current.get()
        return response

    return middleware


def _log_request(request: HttpRequest, response: HttpResponse, began: float) -> None:
    """Log a line for an answered request, without the query, which may contain names."""
    ms = round((time.perf_counter() - began) * 1000, 1)
    extra = {"method": request.method, "path": request.path_info[:200], "status": response.status_code, "ms": ms}
    logger.info("%s %s %s in %s ms", *extra.values(), extra={**extra, **_log_fields(request)})


def _log_fields(request: HttpRequest) -> dict[str, Any]:
    match = request.resolver_match
    named = () if match is None or "job_id" not in match.kwargs else (match.kwargs["job_id"],)
    return job_fields(named or _job_ids.get())


def _describe(request: HttpRequest, response: HttpResponse) -> None:
    """Name the request's span by its route: the address contains ids and names."""
    method = request.method if request.method in _METHODS else None
    match = request.resolver_match
    route = {} if match is None else {"http.route": f"/{match.route}"}
    attributes = {f"gpusched.{name}": value for name, value in _log_fields(request).items()}
    attributes |= {
        "http.request.method": method or "_OTHER",
        "http.response.status_code": response.status_code,
        "gpusched.request_id": _current.get(),
    }
    name = " ".join([method or "HTTP", *route.values()])
    tracing.describe({**attributes, **route}, name=name, is_error=response.status_code >= 500)


class JsonLines(Lines):
    """Log lines with `request_id` within a request."""

    def context(self) -> dict[str, str]:
        request_id = current_id()
        return {"request_id": request_id} if request_id else {}
