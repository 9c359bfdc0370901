"""Set security headers: a strict content security policy for pages, and looser ones for the admin and the API's own
documentation, whose libraries write scripts into the page. And the time, which Daphne does not send, and with which
agents compare their clocks."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware
from django.utils.http import http_date

# Styles in attributes are harmless next to scripts, and bars and charts need them.
_PAGES = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# Alpine.js in the admin compiles the expressions of its attributes; swagger-ui is started by a script in the page.
_ADMIN = _PAGES.replace("script-src 'self'", "script-src 'self' 'unsafe-inline' 'unsafe-eval'")
_DOCS = _PAGES.replace("script-src 'self'", "script-src 'self' 'unsafe-inline'")
# Answers for programs need nothing that a page needs.
_API = "default-src 'none'; frame-ancestors 'none'"
_PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


def policy_of(path: str) -> str:
    """Return the content security policy for `path`."""
    if path.startswith("/admin/"):
        return _ADMIN
    if path.startswith("/api/v1/docs"):
        return _DOCS
    return _API if path.startswith(("/api/", "/v1/", "/agent/")) else _PAGES


@sync_only_middleware
def security_headers(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", policy_of(request.path))
        response.headers.setdefault("Permissions-Policy", _PERMISSIONS)
        response.headers.setdefault("Date", http_date())
        return response

    return middleware
