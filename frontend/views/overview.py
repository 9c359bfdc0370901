"""The overview, the queue and the list of jobs: what is broken, what is idle, who waits and why."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from frontend import feed
from frontend.views.entrance import page, show
from tenants.permissions import Identity


@page
def overview(request: HttpRequest, who: Identity) -> HttpResponse:
    rows = feed.rows("overview", who.visible_tenants())
    return show(
        request,
        who,
        "pages/overview.html",
        {
            "status": rows.get("status", {}),
            "largest": _of(rows, "largest"),
            "attention": _of(rows, "attention"),
            "waiting": _of(rows, "waiting"),
            "tenants": _of(rows, "tenant"),
            "nodes": feed.rows("nodes", who.visible_tenants()).values(),
        },
    )


def _of(rows: Mapping[str, dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for key, row in rows.items() if key.startswith(f"{kind}:")]


@page
def queue(request: HttpRequest, who: Identity) -> HttpResponse:
    rows = dict(feed.rows("queue", who.visible_tenants()))
    total = rows.pop("total", {})
    return show(request, who, "pages/queue.html", {"total": total, "jobs": rows.values()})


@page
def jobs(request: HttpRequest, who: Identity) -> HttpResponse:
    rows = feed.rows("jobs", who.visible_tenants())
    return show(request, who, "pages/jobs.html", {"jobs": sorted(rows.values(), key=lambda j: -j["id"])})
