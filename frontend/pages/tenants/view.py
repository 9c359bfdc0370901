"""Tenants: what each is guaranteed, uses and borrows per GPU model; one tenant; and the edit of its quota."""

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from frontend.live import feed
from frontend.pages.tenants import details
from frontend.pages.tenants import rows as tenantrows
from frontend.pages.tenants.rows import bar_scale
from frontend.ui.page import page, show
from tenants.api.tenants import find_tenant, represent_tenants
from tenants.auth.identity import Identity
from tenants.billing import budgets, usage_report
from tenants.models import Rate

_LATELY_DAYS = 30
_MAX_USERS = 10


@page
def tenants(request: HttpRequest, who: Identity) -> HttpResponse:
    return show(request, who, "tenants/page.html", _list_context(who, is_all=request.GET.get("archived") == "true"))


def _list_context(who: Identity, *, is_all: bool) -> dict[str, Any]:
    """With archived tenants only if `is_all`; `archived`: how many there are."""
    visible = who.visible_tenants()
    live = tenantrows.restrict(tenantrows.load(), visible, with_archived=True)
    everyone = represent_tenants(visible)
    found = [tenant for tenant in everyone if is_all or tenant["archived_at"] is None]
    models, preempted = details.by_model(found), details.preemptions()
    standing = {one.tenant_id: one for one in budgets.statuses(visible)}
    rows = [
        {
            **tenant,
            "live": live.get(tenant["name"], {}),
            "models": models[tenant["name"]],
            "preempted": details.balance(preempted, tenant["id"]),
            "budget": standing.get(tenant["id"]),
        }
        for tenant in found
    ]
    rows.sort(key=lambda row: (row["archived_at"] is not None, -row["live"].get("gpus_held", 0), row["name"]))
    archived = sum(tenant["archived_at"] is not None for tenant in everyone)
    return {"tenants": rows, "scale": bar_scale(row["live"] for row in rows), "archived": archived, "is_all": is_all}


@page
def tenant(request: HttpRequest, who: Identity, name: str) -> HttpResponse:
    found = find_tenant(name, who)
    [shown] = represent_tenants([found.pk])
    live = feed.rows(f"tenant:{name}", who.visible_tenants())["tenant"]
    preempted = details.preemptions()
    now = timezone.now()
    since = now - timedelta(days=_LATELY_DAYS)
    used = usage_report.report([found.pk], since, now, "user", limit=1000)
    words: dict[str, Any] = {
        "tenant": shown,
        "live": live,
        "scale": bar_scale([live]),
        "models": details.by_model([shown])[name],
        "members": details.members([found.pk]).get(found.pk, []),
        "budget": next(iter(budgets.statuses([found.pk])), None),
        "crossings": budgets.crossings(found.pk),
        "preempted": details.balance(preempted, found.pk),
        "taken": details.preempted_by(preempted, found.pk, who),
        "gave": details.preempted_for(preempted, found.pk, who),
        "users": sorted(used.rows, key=lambda row: -row["gpu_seconds"])[:_MAX_USERS],
        "total": used.total,
        "currency": settings.ENV.currency,
        "has_rates": Rate.objects.exists(),
        "days": _LATELY_DAYS,
        "edits": details.edits(found.pk) if who.is_admin else [],
    }
    return show(request, who, "tenants/tenant.html", words)
