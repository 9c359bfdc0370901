"""REST for budgets of GPU-hours."""

from typing import Any

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import if_match, read_body
from gpusched.lib.times import rfc3339
from gpusched.protocol.rest.billing import BudgetData
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity
from tenants.billing import budgets
from tenants.models import Tenant


class BudgetFields(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Null: no bound. `days` null: of the calendar month (UTC). `version`, as read, prevents lost updates."""

    soft_gpu_hours: float | None = None
    hard_gpu_hours: float | None = None
    days: int | None = None
    version: int | None = None


class TenantBudget(APIView):
    @documented("Read the budget of a tenant and its use", tag="usage", who="viewer", answer=BudgetData)
    def get(self, request: Request, name: str) -> Response:
        """GPU-hours of the calendar month (UTC), or of the last `days`; null: no bound. `state` is `within`,
        `soft_exceeded` or `hard_exceeded`; `crossings`: the latest 20 times that a bound was reached. With `ETag`."""
        tenant = find_tenant(name, identity(request))
        return _answer(tenant, next(iter(budgets.statuses([tenant.pk])), None))

    @documented(
        "Replace the budget of a tenant",
        tag="usage",
        who="admin",
        body=BudgetFields,
        answer=BudgetData,
        parameters={"dry_run": "true: return the status after the edit, and change nothing"},
        refusals=(400, 401, 403, 404, 412, 413, 415),
    )
    def put(self, request: Request, name: str) -> Response:
        """Both bounds null: no budget. Running jobs continue. Returns the new status; `dry_run=true` changes nothing.
        `If-Match` (or `version`) prevents lost updates (412)."""
        caller = identity(request)
        tenant = find_tenant(name, caller)
        caller.require_admin()
        values = msgspec.structs.asdict(read_body(request, BudgetFields))
        version = if_match(request, "this budget", values.pop("version"))
        is_dry = is_dry_run(request)
        budget = budgets.change(tenant.pk, values, actor=caller.username, expected_version=version, dry_run=is_dry)
        return _answer(tenant, budget, status="would_be_changed" if is_dry else "changed")


def _answer(tenant: Tenant, budget: budgets.BudgetStatus | None, status: str = "") -> Response:
    answer: dict[str, Any] = {"tenant": tenant.name, "version": 0, "state": "within", "sentence": "there is no budget"}
    if budget is not None:
        names = ("soft_gpu_hours", "hard_gpu_hours", "days", "version", "state", "sentence")
        answer |= {name: getattr(budget, name) for name in names}
        answer |= {"since": rfc3339(budget.since), "renews_at": rfc3339(budget.renews_at)}
        answer["used_gpu_hours"] = round(budget.used_gpu_hours, 4)
    answer["crossings"] = budgets.crossings(tenant.pk)
    if status:
        answer["status"] = status
    return Response(answer, headers={"ETag": f'"{answer["version"]}"'})
