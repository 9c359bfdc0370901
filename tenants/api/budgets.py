"""REST for budgets of GPU-hours: how one stands, and replacing it."""

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
    """Null: no bound. `days` null: of the calendar month (UTC). `version`, as read, protects others' edits."""

    soft_gpu_hours: float | None = None
    hard_gpu_hours: float | None = None
    days: int | None = None
    version: int | None = None


class TenantBudget(APIView):
    @documented("How the budget of a tenant stands", tag="usage", who="viewer", answer=BudgetData)
    def get(self, request: Request, name: str) -> Response:
        """GPU-hours of the calendar month (UTC), or of the last `days`; null: no bound. `state` is `within`,
        `soft_exceeded` or `hard_exceeded`; `crossings` are the latest 20 times that one was used up. With `ETag`."""
        tenant = find_tenant(name, identity(request))
        return _answer(tenant, next(iter(budgets.statuses([tenant.pk])), None))

    @documented(
        "Replace the budget of a tenant",
        tag="usage",
        who="admin",
        body=BudgetFields,
        answer=BudgetData,
        parameters={"dry_run": "true: answer how it would stand, and change nothing"},
        refusals=(400, 401, 403, 404, 412, 413, 415),
    )
    def put(self, request: Request, name: str) -> Response:
        """Both bounds null: no budget. What runs goes on. Answers how it stands then; `dry_run=true` changes nothing.
        `If-Match` (or `version`) refuses to overwrite somebody else's edit."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require_admin()
        values = msgspec.structs.asdict(read_body(request, BudgetFields))
        version = if_match(request, "this budget", values.pop("version"))
        is_dry = is_dry_run(request)
        found = budgets.change(tenant.pk, values, actor=who.username, expected_version=version, dry_run=is_dry)
        return _answer(tenant, found, status="would_be_changed" if is_dry else "changed")


def _answer(tenant: Tenant, found: budgets.BudgetStatus | None, status: str = "") -> Response:
    shown: dict[str, Any] = {"tenant": tenant.name, "version": 0, "state": "within", "sentence": "there is no budget"}
    if found is not None:
        names = ("soft_gpu_hours", "hard_gpu_hours", "days", "version", "state", "sentence")
        shown |= {name: getattr(found, name) for name in names}
        shown |= {"since": rfc3339(found.since), "renews_at": rfc3339(found.renews_at)}
        shown["used_gpu_hours"] = round(found.used_gpu_hours, 4)
    shown["crossings"] = budgets.crossings(tenant.pk)
    if status:
        shown["status"] = status
    return Response(shown, headers={"ETag": f'"{shown["version"]}"'})
