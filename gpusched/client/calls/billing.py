"""The calls for use and money: a tenant's use and its cost, rates, and budgets of GPU-hours."""

from dataclasses import replace
from datetime import date, datetime

from gpusched.client.transport.call import Call, delete, get, moment, segment, without_none, write
from gpusched.protocol.rest.billing import BudgetData, RateData, Usage
from gpusched.protocol.rest.jobs import Page

# Days are UTC, as are moments without a time zone.
Moment = str | date | datetime
_MAX_PER_PAGE = 1000


def usage(tenant: str, by: str, start: Moment | None, end: Moment | None) -> Call[Usage]:
    """Return a tenant's use and its cost."""
    times = without_none(**{"from": moment(start), "to": moment(end)})
    return get(f"/tenants/{segment(tenant)}/usage", Usage, by=by, limit=_MAX_PER_PAGE, **times)


def usage_after(call: Call[Usage], page: Usage) -> Call[Usage]:
    """Return the call for the next page, which counts up to the same moment as this one."""
    return replace(call, query={**call.query, "to": moment(page.end_at) or "", "cursor": page.next_cursor or ""})


def rates() -> Call[Page[RateData]]:
    """Return the prices of GPU-hours, by model and time."""
    return get("/rates", Page[RateData])


def set_rate(
    gpu_model: str, price_per_gpu_hour: float, *, starts_at: Moment | None = None, ends_at: Moment | None = None
) -> Call[RateData]:
    """Set a rate from now, or from a later time on (admins). `gpu_model`: words of the driver's name, or * for all
    others."""
    body = {"gpu_model": gpu_model, "price_per_gpu_hour": price_per_gpu_hour}
    times = without_none(starts_at=moment(starts_at), ends_at=moment(ends_at))
    return write("POST", "/rates", RateData, {**body, **times})


def end_rate(rate_id: int) -> Call[None]:
    """End a rate now, or withdraw a planned one (admins)."""
    return delete(f"/rates/{rate_id}")


def budget(tenant: str) -> Call[BudgetData]:
    """Return the budget of a tenant and its use; `version` 0: it has none."""
    return get(f"/tenants/{segment(tenant)}/budget", BudgetData)


def set_budget(
    tenant: str,
    *,
    soft_gpu_hours: float | None = None,
    hard_gpu_hours: float | None = None,
    days: int | None = None,
    version: int | None = None,
    dry_run: bool = False,
) -> Call[BudgetData]:
    """Replace the budget of a tenant (admins); a bound that is left out is removed. `days` None: of the calendar month.
    `version`, as read, protects another admin's edit."""
    body = {"soft_gpu_hours": soft_gpu_hours, "hard_gpu_hours": hard_gpu_hours, "days": days}
    path = f"/tenants/{segment(tenant)}/budget"
    return write("PUT", path, BudgetData, body, version=version, is_dry_run=dry_run)
