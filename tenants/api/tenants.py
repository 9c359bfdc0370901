"""REST for tenants and their quotas."""

from typing import Any, Literal

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import not_found
from gpusched.lib.api.rest import if_match, is_true, read_body, read_query
from gpusched.lib.db.sql import query
from gpusched.lib.hooks import hook
from gpusched.lib.times import rfc3339
from gpusched.protocol.rest.cluster import EditedQuota, Quota
from gpusched.protocol.rest.cluster import Tenant as TenantData
from gpusched.protocol.rest.jobs import Page
from tenants.auth.identity import Identity, identity
from tenants.models import Tenant
from tenants.tenancy import rename, tenants

Whole = int | None


class QuotaFields(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Limits on what a tenant holds at once; null: no limit. `max_queued_jobs` and `max_deferred_jobs`: what waits;
    null: as the server's settings say. `version`, as read, protects others' edits."""

    max_gpus: Whole = None
    max_gpu_memory_mb: Whole = None
    max_cpu_cores: Whole = None
    max_memory_mb: Whole = None
    max_concurrent_jobs: Whole = None
    max_gpus_per_user: Whole = None
    max_gpus_by_model: dict[str, int] = {}
    max_queued_jobs: Whole = None
    max_deferred_jobs: Whole = None
    guaranteed_gpus: int = 0
    version: Whole = None


class NewTenant(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    name: str
    display_name: str = ""
    weight: float = 1.0
    tier: Literal["premium", "standard", "opportunistic"] = "standard"
    allow_preemption: bool = True
    can_preempt_others: bool = True
    preemption_budget_per_hour: Whole = None
    unix_user: str = ""
    quota: QuotaFields = QuotaFields()


class TenantChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Only what is given is changed."""

    display_name: str | msgspec.UnsetType = msgspec.UNSET
    weight: float | msgspec.UnsetType = msgspec.UNSET
    tier: Literal["premium", "standard", "opportunistic"] | msgspec.UnsetType = msgspec.UNSET
    allow_preemption: bool | msgspec.UnsetType = msgspec.UNSET
    can_preempt_others: bool | msgspec.UnsetType = msgspec.UNSET
    preemption_budget_per_hour: Whole | msgspec.UnsetType = msgspec.UNSET
    unix_user: str | msgspec.UnsetType = msgspec.UNSET


class NewName(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    name: str


def _values(changes: msgspec.Struct) -> dict[str, Any]:
    return {k: v for k, v in msgspec.structs.asdict(changes).items() if v is not msgspec.UNSET}


_TENANTS = """
    SELECT t.id, t.name, t.display_name, t.weight, t.tier, t.allow_preemption, t.can_preempt_others,
           t.preemption_budget_per_hour, t.unix_user, t.created_at, t.archived_at,
           json_build_object('max_gpus', q.max_gpus, 'max_gpu_memory_mb', q.max_gpu_memory_mb,
               'max_cpu_cores', q.max_cpu_cores, 'max_memory_mb', q.max_memory_mb,
               'max_concurrent_jobs', q.max_concurrent_jobs, 'max_gpus_per_user', q.max_gpus_per_user,
               'max_queued_jobs', q.max_queued_jobs, 'max_deferred_jobs', q.max_deferred_jobs,
               'max_gpus_by_model', coalesce(q.max_gpus_by_model, '{{}}'),
               'guaranteed_gpus', coalesce(q.guaranteed_gpus, 0), 'version', coalesce(q.version, 0)) AS quota,
           u.in_use, u.pending_jobs
      FROM tenants_tenant t LEFT JOIN tenants_quota q ON q.tenant_id = t.id CROSS JOIN LATERAL ({tenant_use}) u
     WHERE (%(ids)s::bigint[] IS NULL OR t.id = ANY(%(ids)s)) AND (%(with_archived)s OR t.archived_at IS NULL)
     ORDER BY t.name
"""


def represent_tenants(ids: list[int] | None, *, with_archived: bool = True) -> list[dict[str, Any]]:
    """Tenants (None: all) as the API and the page show them: limits, and what is in use now."""
    rows = query(_TENANTS.format(tenant_use=hook("tenant_use")), {"ids": ids, "with_archived": with_archived})
    times = ("created_at", "archived_at")
    return [{**row, **{name: rfc3339(row[name]) for name in times}} for row in rows]


def _shown(tenant_id: int) -> dict[str, Any]:
    return represent_tenants([tenant_id])[0]


def find_tenant(name: str, who: Identity) -> Tenant:
    """404 for a tenant that does not exist and for one that the caller does not belong to alike."""
    tenant = Tenant.objects.filter(name=name).first() if "\x00" not in name else None
    if tenant is None or not who.sees(tenant.pk):
        raise not_found(f"tenant '{name[:63]}'")
    return tenant


class Tenants(APIView):
    @documented(
        "List the tenants that you belong to (admins: all)",
        tag="tenants",
        who="anybody",
        answer=Page[TenantData],
        parameters={"archived": "true: also those that are archived (`archived_at`)"},
        refusals=(400, 401, 403),
    )
    def get(self, request: Request) -> Response:
        """With `quota`, `in_use` and `pending_jobs`. Without those that are archived, unless `archived=true`."""
        visible, with_archived = identity(request).visible_tenants(), is_true(read_query(request), "archived")
        return Response({"items": represent_tenants(visible, with_archived=with_archived), "next_cursor": None})

    @documented(
        "Create a tenant",
        tag="tenants",
        who="admin",
        body=NewTenant,
        answer=TenantData,
        status=201,
        refusals=(400, 401, 403, 409),
    )
    def post(self, request: Request) -> Response:
        """`name` is lower-case letters, digits and dashes; `weight` is 0.001 to 1000000; `tier` also `premium` or
        `opportunistic`; `preemption_budget_per_hour` null: any number of its jobs may be preempted; `unix_user` empty:
        the node's choice (docs/agent.md, Whose processes)."""
        who = identity(request)
        who.require_admin()
        fields = _values(read_body(request, NewTenant))
        limits = {k: v for k, v in msgspec.structs.asdict(fields.pop("quota")).items() if k != "version"}
        return Response(_shown(tenants.create_tenant(fields, actor=who.username, quota=limits).pk), status=201)


class OneTenant(APIView):
    @documented("Read a tenant", tag="tenants", who="viewer", answer=TenantData)
    def get(self, request: Request, name: str) -> Response:
        return Response(_shown(find_tenant(name, identity(request)).pk))

    @documented("Change a tenant", tag="tenants", who="admin", body=TenantChanges, answer=TenantData)
    def patch(self, request: Request, name: str) -> Response:
        """What is given, all but `name` (`POST …/rename`) and `quota`."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require_admin()
        if changes := _values(read_body(request, TenantChanges)):
            tenants.change_tenant(tenant, changes, actor=who.username)
        return Response(_shown(tenant.pk))


class Rename(APIView):
    @documented(
        "Rename a tenant",
        tag="tenants",
        who="admin",
        body=NewName,
        answer=TenantData,
        refusals=(400, 401, 403, 404, 409),
    )
    def post(self, request: Request, name: str) -> Response:
        """Its id stays, and jobs, use, history, members and tokens with it; accounts of its programs become
        `program@name`. The old name is 404 from then on, without a redirect, and free for another tenant. 409
        `named_in_settings` while `GPUSCHED_OIDC_GROUPS` has the old name."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require_admin()
        rename.rename(tenant, read_body(request, NewName).name, actor=who.username)
        return Response(_shown(tenant.pk))


class TenantQuota(APIView):
    @documented("Read a quota", tag="tenants", who="viewer", answer=Quota)
    def get(self, request: Request, name: str) -> Response:
        """Null: no limit. `max_gpus_by_model` is like `{"A100": 16}`: a word of the driver's name for it. With
        `ETag`."""
        return self._answer(find_tenant(name, identity(request)).pk)

    @documented(
        "Replace a quota",
        tag="tenants",
        who="admin",
        body=QuotaFields,
        answer=EditedQuota,
        parameters={"dry_run": "true: answer 200 with the quota as it would be and its effect, and change nothing"},
        refusals=(400, 401, 403, 404, 412),
    )
    def put(self, request: Request, name: str) -> Response:
        """All of it: a limit that is left out is none. A lowered limit stops nothing; a tenant above it starts nothing
        until it is below. The answer has the `effect`; `dry_run=true` gives it and changes nothing. What would do
        nothing is refused. `If-Match` (or `version`) refuses to overwrite somebody else's edit."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require_admin()
        limits = _values(read_body(request, QuotaFields))
        version = if_match(request, "this quota", limits.pop("version"))
        tenants.checked_quota(tenant.pk, limits, expected_version=version)
        effect = hook("quota_effect")(tenant.pk, limits)
        if is_dry_run(request):
            now = _shown(tenant.pk)["quota"]
            return Response({**now, **limits, "status": "would_be_changed", "effect": effect})
        tenants.change_quota(tenant.pk, limits, actor=who.username, expected_version=version)
        return self._answer(tenant.pk, status="changed", effect=effect)

    def _answer(self, tenant_id: int, **more: Any) -> Response:
        shown = _shown(tenant_id)["quota"]
        return Response({**shown, **more}, headers={"ETag": f'"{shown["version"]}"'})
