"""The fleet map and the list of nodes."""

from typing import Any

from django.http import HttpRequest, HttpResponse

from frontend.live import feed
from frontend.pages.fleet import readings
from frontend.pages.nodes import groups
from frontend.ui.page import page, show
from tenants.auth.identity import Identity


@page
def fleet(request: HttpRequest, identity: Identity) -> HttpResponse:
    return show(request, identity, "fleet/page.html", {"nodes": _nodes(identity)})


@page
def nodes(request: HttpRequest, identity: Identity) -> HttpResponse:
    listed = _nodes(identity)
    group = request.GET.get("group", "")
    group = group if group in groups.KEYS else ""
    counts = groups.counts(listed)
    context = {
        "grouped": groups.grouped(node for node in listed if group in ("", groups.group_of(node))),
        "is_cpu_only": len(listed) == 1 and not listed[0]["devices"],
        "groups": [("", "All", len(listed)), *((key, label, counts[key]) for key, label, _ in groups.GROUPS)],
        "chosen_group": group,
        "has_any": bool(listed),
    }
    return show(request, identity, "nodes/page.html", context)


def _nodes(identity: Identity) -> list[dict[str, Any]]:
    rows = feed.load_for(["nodes", "readings"], identity.visible_tenants())
    return readings.joined(rows["nodes"] or {}, rows["readings"] or {})
