"""Search for the command palette: jobs by id or name, nodes, tenants and endpoints that the caller can see."""

import re
from collections.abc import Callable, Collection
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse

from frontend.ui.page import page
from gpusched.lib.db.sql import query
from tenants.auth.identity import Identity

_MAX_RESULTS = 8
_MAX_TEXT = 100
# Names are searched among the latest jobs; older ones are found by id.
_LATEST = 20_000
# Escaped in search terms.
_WILDCARDS = re.compile(r"[%_\\]")

_JOBS = """
    SELECT j.id, j.name, j.state, t.name AS tenant, u.username AS "user"
      FROM (SELECT * FROM jobs_all WHERE id = %(id)s
             UNION
            (SELECT * FROM (SELECT * FROM jobs_all WHERE %(tenants)s::bigint[] IS NULL OR tenant_id = ANY(%(tenants)s)
                             ORDER BY id DESC LIMIT %(latest)s) latest
              WHERE name ILIKE ALL(%(words)s) OR starts_with(id::text, %(text)s)
              ORDER BY id DESC LIMIT %(most)s)) j
      JOIN tenants_all t ON t.id = j.tenant_id JOIN tenants_people u ON u.id = j.user_id
     WHERE %(tenants)s::bigint[] IS NULL OR j.tenant_id = ANY(%(tenants)s)
     ORDER BY j.id = %(id)s DESC, j.id DESC LIMIT %(most)s
"""
_NODES = """
    SELECT name, state FROM nodes_all WHERE removed_at IS NULL AND name ILIKE ALL(%(words)s)
     ORDER BY starts_with(lower(name), lower(%(text)s)) DESC, name LIMIT %(most)s
"""
_TENANTS = """
    SELECT name FROM tenants_all
     WHERE (%(tenants)s::bigint[] IS NULL OR id = ANY(%(tenants)s)) AND name ILIKE ALL(%(words)s)
     ORDER BY name LIMIT %(most)s
"""
_ENDPOINTS = """
    SELECT e.name, e.state, t.name AS tenant
      FROM serving_endpoints e JOIN tenants_all t ON t.id = e.tenant_id
     WHERE e.state <> 'removed' AND (%(tenants)s::bigint[] IS NULL OR e.tenant_id = ANY(%(tenants)s))
       AND e.name ILIKE ALL(%(words)s)
     ORDER BY e.name, t.name LIMIT %(most)s
"""


@page
def search(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Return at most eight matches of each kind for `?q=`, as {found: [{kind, name, about, href}]}.

    A name must contain all words. A leading kind ("node r01") restricts the search, unless that finds nothing."""
    text = request.GET.get("q", "").strip()[:_MAX_TEXT]
    if not text or "\x00" in text:
        return JsonResponse({"found": []})
    visible = identity.visible_tenants()
    kind, *terms = text.split()
    find = _KINDS.get(kind.lower().removesuffix("s"))
    results = find(_params(terms, visible)) if find and terms else []
    if not results:
        params = _params(text.split(), visible)
        results = [result for find_each in _KINDS.values() for result in find_each(params)]
    return JsonResponse({"found": results})


def _params(terms: list[str], visible: Collection[int] | None) -> dict[str, Any]:
    """Return the SQL parameters; #17 is a job id."""
    text = " ".join(terms)
    number = text.removeprefix("#")
    is_id = number.isascii() and number.isdigit() and len(number) <= 18
    patterns = [number] if is_id else terms
    return {
        "text": number if is_id else text,
        "words": ["%" + _WILDCARDS.sub(r"\\\g<0>", word) + "%" for word in patterns],
        "id": int(number) if is_id else None,
        "tenants": None if visible is None else list(visible),
        "most": _MAX_RESULTS,
        "latest": _LATEST,
    }


def _jobs(params: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "kind": "job",
            "name": f"{row['id']} {row['name']}",
            "about": f"{row['state']} · {row['user']}, {row['tenant']}",
            "href": reverse("job", args=[row["id"]]),
        }
        for row in query(_JOBS, params)
    ]


def _nodes(params: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"kind": "node", "name": row["name"], "about": row["state"], "href": reverse("node", args=[row["name"]])}
        for row in query(_NODES, params)
    ]


def _tenants(params: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"kind": "tenant", "name": row["name"], "about": "", "href": reverse("tenant", args=[row["name"]])}
        for row in query(_TENANTS, params)
    ]


def _endpoints(params: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "kind": "endpoint",
            "name": row["name"],
            "about": f"{row['state']} · {row['tenant']}",
            "href": reverse("endpoint", args=[row["tenant"], row["name"]]),
        }
        for row in query(_ENDPOINTS, params)
    ]


_KINDS: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
    "job": _jobs,
    "node": _nodes,
    "tenant": _tenants,
    "endpoint": _endpoints,
}
