"""Usage: GPU-hours allocated, used and held idle over a time, by tenant, user or model, with cost, budgets and CSV."""

import csv
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from frontend.pages.usage import rows as used
from frontend.ui.page import page, show
from gpusched.lib.db.sql import query
from gpusched.protocol.csv_cells import as_text
from tenants.auth.identity import Identity
from tenants.billing import budgets
from tenants.models import Rate

MAX_DAYS = 400
_MEASURES = {"gpu_hours": "allocated", "idle_gpu_hours": "held idle", "cost": "cost"}
_CSV = ("gpu_hours", "idle_gpu_hours", "cost")


@page
def usage(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Show usage by ?from= and ?to= (inclusive days), ?by=, ?tenant=, ?show=, ?format=csv."""
    begin, end, problem = _period(request)
    by = request.GET.get("by", "tenant")
    by = by if by in used.BY else "tenant"
    names = _tenants(identity)
    requested = request.GET.get("tenant", "")
    unknown = "" if not requested or requested in names else "This tenant does not exist, or you are not a member."
    is_csv = request.GET.get("format") == "csv"
    if is_csv and (problem or unknown):
        # A file does not show that it is about another period or other tenants.
        return HttpResponse(f"{problem or unknown}\n", status=400, content_type="text/plain; charset=utf-8")
    ids = [names[requested]] if requested in names else list(names.values())
    until = min(datetime.combine(end, time(), UTC), timezone.now() - timedelta(days=1)) + timedelta(days=1)
    result = used.usage_rows(ids, datetime.combine(begin, time(), UTC), until, by)
    if is_csv:
        return _as_csv(result, by, begin, end)
    measure = request.GET.get("show", "gpu_hours")
    measure = measure if measure in _MEASURES else "gpu_hours"
    context: dict[str, Any] = {
        "usage": result,
        "by": by,
        "bys": used.BY,
        "measure": measure,
        "measures": _MEASURES,
        "measure_label": _MEASURES[measure],
        "chart": used.chart(result, measure),
        "begin": begin,
        "end": end,
        "periods": _periods(),
        "problem": problem,
        "tenants": sorted(names),
        "chosen_tenant": requested if requested in names else "",
        "unknown": unknown,
        "currency": settings.ENV.currency,
        "has_rates": Rate.objects.exists(),
        "budgets": _budgets(ids),
        "address": _address(request),
    }
    return show(request, identity, "usage/page.html", context)


def _tenants(identity: Identity) -> dict[str, int]:
    """Return ids by name of the tenants that the caller can see."""
    if not identity.is_admin:
        return {name: number for number, name in identity.tenant_names.items()}
    return {row["name"]: row["id"] for row in query("SELECT id, name FROM tenants_all")}


def _budgets(tenant_ids: list[int]) -> list[dict[str, Any]]:
    names = ("tenant", "state", "used_gpu_hours", "soft_gpu_hours", "hard_gpu_hours", "period", "renews_at")
    return [
        {
            **{name: getattr(budget, name) for name in names},
            "remaining": None
            if budget.hard_gpu_hours is None
            else max(0.0, budget.hard_gpu_hours - budget.used_gpu_hours),
        }
        for budget in (budgets.statuses(tenant_ids) if tenant_ids else ())
    ]


def _period(request: HttpRequest) -> tuple[date, date, str]:
    """Return the first and last day, and an error; with an error, the last 30 days."""
    today = timezone.now().astimezone(UTC).date()
    usual = today - timedelta(days=29), today
    try:
        begin = date.fromisoformat(request.GET.get("from") or str(usual[0]))
        end = date.fromisoformat(request.GET.get("to") or str(usual[1]))
    except ValueError:
        return *usual, "Write days like 2030-01-31."
    if begin > end:
        return *usual, "The first day must not be after the last."
    if (end - begin).days >= MAX_DAYS:
        return *usual, f"Choose at most {MAX_DAYS} days."
    return begin, end, ""


def _periods() -> list[tuple[str, date, date]]:
    today = timezone.now().astimezone(UTC).date()
    month = today.replace(day=1)
    previous = (month - timedelta(days=1)).replace(day=1)
    return [
        ("7 days", today - timedelta(days=6), today),
        ("30 days", today - timedelta(days=29), today),
        ("this month", month, today),
        ("last month", previous, month - timedelta(days=1)),
    ]


def _address(request: HttpRequest) -> dict[str, str]:
    """Return the query without each parameter, for links that change it."""
    parts = {}
    for changed in ("period", "by", "show", "format"):
        params = request.GET.copy()
        for name in ("from", "to") if changed == "period" else (changed,):
            params.pop(name, None)
        text = params.urlencode()
        parts[changed] = f"?{text}&" if text else "?"
    return parts


def _as_csv(result: used.Usage, by: str, begin: date, end: date) -> HttpResponse:
    """Return a line for each day and key; formulas are escaped as text."""
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="usage-by-{by}-{begin}-{end}.csv"'
    writer = csv.writer(response)
    writer.writerow(["day", by, *_CSV])
    for (day, key), row in sorted(result.daily.items()):
        writer.writerow([day, as_text(key), *(row[name] for name in _CSV)])
    return response
