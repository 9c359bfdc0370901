"""The fleet and its nodes: the lists of what there is."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from frontend.live import feed
from frontend.pages.fleet import readings
from frontend.pages.nodes import groups
from frontend.ui.page import page, show
from tenants.auth.identity import Identity


@page
def fleet(request: HttpRequest, who: Identity) -> HttpResponse:
    return show(request, who, "fleet/page.html", {"nodes": _nodes(who)})


@page
def nodes(request: HttpRequest, who: Identity) -> HttpResponse:
    found = _nodes(who)
    asked = request.GET.get("group", "")
    asked = asked if asked in groups.KEYS else ""
    counts = groups.counts(found)
    words = {
        "grouped": groups.grouped(node for node in found if asked in ("", groups.group_of(node))),
        "is_cpu_only": len(found) == 1 and not found[0]["devices"],
        "groups": [("", "All", len(found)), *((key, said, counts[key]) for key, said, _ in groups.GROUPS)],
        "asked": asked,
        "has_any": bool(found),
    }
    return show(request, who, "nodes/page.html", words)


def _nodes(who: Identity) -> list[dict[str, Any]]:
    rows = feed.load_for(["nodes", "readings"], who.visible_tenants())
    return readings.joined(rows["nodes"] or {}, rows["readings"] or {})
