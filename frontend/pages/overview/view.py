"""The overview: problems, idle GPUs, waiting jobs by reason, and tenants against their shares."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse

from frontend.live import feed
from frontend.pages.join.view import join_context
from frontend.pages.tenants.rows import bar_scale
from frontend.ui.page import page, show
from tenants.auth.identity import Identity

_MAX_CELLS = 400
_CELLS = (("busy", "busy"), ("held_idle", "held but idle"), ("free", "free"), ("unavailable", "unavailable"))


@page
def overview(request: HttpRequest, identity: Identity) -> HttpResponse:
    return show_overview(request, identity)


def show_overview(request: HttpRequest, identity: Identity) -> HttpResponse:
    template = "overview/wall.html" if request.GET.get("wall") == "1" else "overview/page.html"
    return show(request, identity, template, {**cluster_now(identity), **join_context(request)})


def cluster_now(identity: Identity) -> dict[str, Any]:
    """Return the context that renders the overview before its script runs."""
    visible = identity.visible_tenants()
    loaded = feed.load_for(["overview", "nodes"], visible)
    rows = loaded["overview"] or {}
    status = rows["status"]
    tenants = _of(rows, "tenant")
    return {
        "status": status,
        "cells": [(cell, label, status[f"{cell}_gpus"]) for cell, label in _CELLS],
        "nodes": (loaded["nodes"] or {}).values(),
        "is_long": status["total_gpus"] > _MAX_CELLS,
        "largest": sorted(_of(rows, "largest"), key=lambda r: (-r["gpus"], r["model"])),
        "attention": _of(rows, "attention"),
        "next": sorted(_of(rows, "next"), key=lambda r: r["place"]),
        "waiting": sorted(_of(rows, "waiting"), key=lambda r: (-r["jobs"], r["code"])),
        "tenants": sorted(tenants, key=lambda t: (not _is_denied(t), -t["gpus_held"], t["name"])),
        "scale": bar_scale(tenants),
    }


def _is_denied(tenant: Mapping[str, Any]) -> bool:
    """Return whether the tenant's jobs wait although it holds less than its guarantee; the script sorts alike."""
    return bool(tenant["jobs_asking"]) and tenant["gpus_held"] < (tenant["guaranteed_gpus"] or 0)


def _of(rows: Mapping[str, dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for key, row in rows.items() if key.startswith(f"{kind}:")]
