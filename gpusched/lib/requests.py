"""What happens to each HTTP request first: it gets an id for its answer, its errors and the log."""

import contextvars
import logging
import re
import time
import uuid
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

logger = logging.getLogger(__name__)
HEADER = "X-Request-Id"
_current: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
_ACCEPTED = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


def current_id() -> str:
    """The id of the request being served, or an empty string outside of one."""
    return _current.get()


@sync_only_middleware
def request_id(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Takes over a well-formed id from a proxy, so that one id names the request everywhere."""

    is_told = settings.ENV.log_format == "json"

    def middleware(request: HttpRequest) -> HttpResponse:
        given = request.headers.get(HEADER, "")
        _current.set(given if _ACCEPTED.match(given) else uuid.uuid4().hex[:16])
        if request.path_info.startswith("/api/"):
            # Half of all HTTP clients add a slash to the end of an address.
            request.path_info = request.path_info.rstrip("/")
        began = time.perf_counter()
        response = get_response(request)
        if is_told:
            _tell(request, response, began)
        response[HEADER] = _current.get()
        return response

    return middleware


def _tell(request: HttpRequest, response: HttpResponse, began: float) -> None:
    """One line for an answered request; the query is left out, as it may have names in it."""
    ms = round((time.perf_counter() - began) * 1000, 1)
    extra = {"method": request.method, "path": request.path_info[:200], "status": response.status_code, "ms": ms}
    match = request.resolver_match
    if match is not None and "job_id" in match.kwargs:
        extra["job_id"] = match.kwargs["job_id"]
    logger.info("%s %s %s in %s ms", *list(extra.values())[:4], extra=extra)
