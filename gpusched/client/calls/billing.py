"""The calls about use and money: what a tenant used and what it costs, rates, and budgets of GPU-hours."""

from dataclasses import replace
from datetime import date, datetime

from gpusched.client.calls.access import default_tenant
from gpusched.client.transport.call import API, Call, get, json_as, no_content, segment, without_none, write
from gpusched.client.transport.exchange import Flow, exchange
from gpusched.protocol.rest.billing import BudgetData, RateData, Usage
from gpusched.protocol.rest.jobs import Page

# A day is one of UTC; of a moment without a time zone, too.
Moment = str | date | datetime
_MAX_PER_PAGE = 1000


def usage(tenant: str | None, by: str, start: Moment | None, end: Moment | None, patience: float) -> Flow[Usage]:
    """What a tenant used and what it costs, all rows."""
    owner = yield from default_tenant(tenant, patience)
    times = without_none(**{"from": _moment(start), "to": _moment(end)})
    call = get(f"/tenants/{segment(owner)}/usage", Usage, by=by, limit=_MAX_PER_PAGE, **times)
    whole = page = yield from exchange(call, patience)
    while page.next_cursor is not None:
        # `to` of the first page, so that all count up to one moment.
        call = replace(call, query={**call.query, "to": _moment(whole.end_at) or "", "cursor": page.next_cursor})
        page = yield from exchange(call, patience)
        whole.items += page.items
    whole.next_cursor = None
    return whole


def rates() -> Call[Page[RateData]]:
    """What GPU-hours cost, by model and time."""
    return get("/rates", Page[RateData])


def set_rate(
    gpu_model: str, price_per_gpu_hour: float, *, starts_at: Moment | None = None, ends_at: Moment | None = None
) -> Call[RateData]:
    """A rate from now, or from a later time on (admins). `gpu_model`: words of the driver's name, or * for the rest."""
    body = {"gpu_model": gpu_model, "price_per_gpu_hour": price_per_gpu_hour}
    times = without_none(starts_at=_moment(starts_at), ends_at=_moment(ends_at))
    return write("POST", "/rates", RateData, {**body, **times})


def end_rate(rate_id: int) -> Call[None]:
    """Ends a rate now, or takes a planned one back (admins)."""
    # Not repeatable: the second of two would not find what the first has taken back.
    return Call("DELETE", f"{API}/rates/{rate_id}", no_content, is_repeatable=False)


def budget(tenant: str) -> Call[BudgetData]:
    """How the budget of a tenant stands; `version` 0: it has none."""
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
    """Replaces the budget of a tenant (admins); what is left out is no bound. `days` None: of the calendar month.
    With `version`, as read, somebody else's edit is not overwritten."""
    return Call(
        "PUT",
        f"{API}/tenants/{segment(tenant)}/budget",
        json_as(BudgetData),
        query={"dry_run": "true"} if dry_run else {},
        body={"soft_gpu_hours": soft_gpu_hours, "hard_gpu_hours": hard_gpu_hours, "days": days},
        headers={} if version is None else {"If-Match": f'"{version}"'},
        is_repeatable=dry_run or version is None,
    )


def _moment(when: Moment | None) -> str | None:
    return when if isinstance(when, str) or when is None else when.isoformat()
