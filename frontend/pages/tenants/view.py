"""Tenants: guarantee, use and borrowed GPUs per model; and the page of one tenant."""

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
def tenants(request: HttpRequest, identity: Identity) -> HttpResponse:
    return show(
        request, identity, "tenants/page.html", _list_context(identity, is_all=request.GET.get("archived") == "true")
    )


def _list_context(identity: Identity, *, is_all: bool) -> dict[str, Any]:
    """Return the context; archived tenants only if `is_all`; `archived`: their number."""
    visible = identity.visible_tenants()
    live = tenantrows.restrict(tenantrows.load(), visible, with_archived=True)
    all_tenants = represent_tenants(visible)
    listed = [tenant for tenant in all_tenants if is_all or tenant["archived_at"] is None]
    models, preempted = details.by_model(listed), details.preemptions()
    budget_by_tenant = {budget.tenant_id: budget for budget in budgets.statuses(visible)}
    rows = [
        {
            **tenant,
            "live": live.get(tenant["name"], {}),
            "models": models[tenant["name"]],
            "preempted": details.balance(preempted, tenant["id"]),
            "budget": budget_by_tenant.get(tenant["id"]),
        }
        for tenant in listed
    ]
    rows.sort(key=lambda row: (row["archived_at"] is not None, -row["live"].get("gpus_held", 0), row["name"]))
    archived = sum(tenant["archived_at"] is not None for tenant in all_tenants)
    return {"tenants": rows, "scale": bar_scale(row["live"] for row in rows), "archived": archived, "is_all": is_all}


@page
def tenant(request: HttpRequest, identity: Identity, name: str) -> HttpResponse:
    model = find_tenant(name, identity)
    [represented] = represent_tenants([model.pk])
    live = feed.rows(f"tenant:{name}", identity.visible_tenants())["tenant"]
    preempted = details.preemptions()
    now = timezone.now()
    since = now - timedelta(days=_LATELY_DAYS)
    report = usage_report.report([model.pk], since, now, "user", limit=1000)
    context: dict[str, Any] = {
        "tenant": represented,
        "live": live,
        "scale": bar_scale([live]),
        "models": details.by_model([represented])[name],
        "members": details.members([model.pk]).get(model.pk, []),
        "budget": next(iter(budgets.statuses([model.pk])), None),
        "crossings": budgets.crossings(model.pk),
        "preempted": details.balance(preempted, model.pk),
        "preempted_by": details.preempted_by(preempted, model.pk, identity),
        "preempted_for": details.preempted_for(preempted, model.pk, identity),
        "users": sorted(report.rows, key=lambda row: -row["gpu_seconds"])[:_MAX_USERS],
        "total": report.total,
        "currency": settings.ENV.currency,
        "has_rates": Rate.objects.exists(),
        "days": _LATELY_DAYS,
        "edits": details.edits(model.pk) if identity.is_admin else [],
    }
    return show(request, identity, "tenants/tenant.html", context)
