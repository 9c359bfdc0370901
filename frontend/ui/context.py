"""What every page's template may use."""

import time
from typing import Any

from django.core.exceptions import DisallowedHost
from django.db import Error
from django.http import HttpRequest

from gpusched import __version__
from gpusched.lib.db.sql import query

# name of the address, label; the first four stand in the bar of a phone, the others behind "More".
_PAGES = (
    ("mine", "My work"),
    ("overview", "Overview"),
    ("fleet", "Fleet"),
    ("queue", "Queue"),
    ("jobs", "Jobs"),
    ("nodes", "Nodes"),
    ("tenants", "Tenants"),
    ("usage", "Usage"),
    ("health", "Health"),
    ("submit", "Submit"),
    ("tokens", "Tokens"),
)
_PARENTS = {
    "job": "jobs",
    "node": "nodes",
    "join": "nodes",
    "tenant": "tenants",
    "tenant-quota": "tenants",
    "home": "overview",
}
_CACHE_SECONDS = 2.0
_pretend: dict[str, Any] = {"looked_at": float("-inf"), "is": False}


def page(request: HttpRequest) -> dict[str, Any]:
    match = request.resolver_match
    here = (match.url_name or "") if match else ""
    return {
        "is_pretend": is_pretend_fleet(),
        # The script asks for the page again: what is told once is for who sees the next page.
        "is_again": "X-Again" in request.headers,
        "cluster_name": _cluster_name(request),
        "version": __version__,
        "pages": _PAGES,
        "here": _PARENTS.get(here, here),
    }


def is_pretend_fleet() -> bool:
    """Whether any node pretends; asked of the database every two seconds at most. A broken database changes nothing:
    error pages must come out too."""
    if time.monotonic() - _pretend["looked_at"] > _CACHE_SECONDS:
        try:
            [row] = query("SELECT EXISTS (SELECT 1 FROM nodes_all WHERE pretend AND removed_at IS NULL) AS found")
        except Error:
            return bool(_pretend["is"])
        _pretend.update({"is": row["found"], "looked_at": time.monotonic()})
    return bool(_pretend["is"])


def reset_cache() -> None:
    """Makes the next page ask again; for tests."""
    _pretend["looked_at"] = float("-inf")


def _cluster_name(request: HttpRequest) -> str:
    """The name under which people reach this cluster."""
    try:
        return request.get_host()
    except DisallowedHost:
        return ""
