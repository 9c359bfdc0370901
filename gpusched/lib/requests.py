"""What happens to each HTTP request first: it gets an id for its answer, its errors and the log."""

import contextvars
import re
import uuid
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

HEADER = "X-Request-Id"
_current: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
_ACCEPTED = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


def current_id() -> str:
    """The id of the request being served, or an empty string outside of one."""
    return _current.get()


@sync_only_middleware
def request_id(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Takes over a well-formed id from a proxy, so that one id names the request everywhere."""

    def middleware(request: HttpRequest) -> HttpResponse:
        given = request.headers.get(HEADER, "")
        _current.set(given if _ACCEPTED.match(given) else uuid.uuid4().hex[:16])
        if request.path_info.startswith("/api/"):
            # Half of all HTTP clients add a slash to the end of an address.
            request.path_info = request.path_info.rstrip("/")
        response = get_response(request)
        response[HEADER] = _current.get()
        return response

    return middleware
