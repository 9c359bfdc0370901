"""Context for the templates of all pages."""

from typing import Any

from django.core.exceptions import DisallowedHost
from django.db import Error
from django.http import HttpRequest

from gpusched import __version__
from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import query

# URL name, label. A phone shows the first four in its bar, the others behind "More".
_PAGES = (
    ("mine", "My work"),
    ("overview", "Overview"),
    ("fleet", "Fleet"),
    ("queue", "Queue"),
    ("jobs", "Jobs"),
    ("nodes", "Nodes"),
    ("calendar", "Calendar"),
    ("endpoints", "Endpoints"),
    ("tenants", "Tenants"),
    ("usage", "Usage"),
    ("health", "Health"),
    ("submit", "Submit"),
    ("notifications", "Notifications"),
    ("tokens", "Tokens"),
)
_PARENTS = {
    "job": "jobs",
    "node": "nodes",
    "join": "nodes",
    "endpoint": "endpoints",
    "tenant": "tenants",
    "tenant-quota": "tenants",
    "home": "overview",
    "notification-act": "notifications",
}
_pretend: Cache[None, bool] = Cache(seconds=2.0)


def page(request: HttpRequest) -> dict[str, Any]:
    match = request.resolver_match
    name = (match.url_name or "") if match else ""
    return {
        "is_pretend": is_pretend_fleet(),
        # The script reloads parts of the page: keep one-time messages for the next full page.
        "is_refresh": "X-Again" in request.headers,
        "cluster_name": _cluster_name(request),
        "version": __version__,
        "pages": _PAGES,
        "current_page": _PARENTS.get(name, name),
    }


def is_pretend_fleet() -> bool:
    """Return whether any node is a pretend node, cached for two seconds. A database error keeps the cached value, so
    that error pages still render."""
    try:
        return _pretend.get(None, _has_pretend_node)
    except Error:
        return bool(_pretend.last(None, False))


def _has_pretend_node() -> bool:
    [row] = query("SELECT EXISTS (SELECT 1 FROM nodes_all WHERE pretend AND removed_at IS NULL) AS found")
    return bool(row["found"])


def _cluster_name(request: HttpRequest) -> str:
    """Return the host name of the request."""
    try:
        return request.get_host()
    except DisallowedHost:
        return ""
