"""REST for tenants and their quotas."""

from collections.abc import Mapping, Sequence
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
from gpusched.protocol.states import Role
from tenants.auth.identity import Identity, identity
from tenants.models import Tenant
from tenants.tenancy import rename, tenants

Limit = int | None


class QuotaFields(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Limits on what a tenant holds at once; null: no limit. `max_queued_jobs` and `max_deferred_jobs` limit its queue;
    null: the server's settings. `default_runtime_minutes` is the time limit of jobs submitted without one. `version`,
    as read, prevents lost updates."""

    max_gpus: Limit = None
    max_gpu_memory_mb: Limit = None
    max_cpu_cores: Limit = None
    max_memory_mb: Limit = None
    max_concurrent_jobs: Limit = None
    max_gpus_per_user: Limit = None
    max_gpus_by_model: dict[str, int] = {}
    max_queued_jobs: Limit = None
    max_deferred_jobs: Limit = None
    default_runtime_minutes: Limit = None
    guaranteed_gpus: int = 0
    version: Limit = None


class NewTenant(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    name: str
    display_name: str = ""
    weight: float = 1.0
    tier: Literal["premium", "standard", "opportunistic"] = "standard"
    allow_preemption: bool = True
    can_preempt_others: bool = True
    preemption_budget_per_hour: Limit = None
    unix_user: str = ""
    time_zone: str = "UTC"
    quota: QuotaFields = QuotaFields()


class TenantChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The fields to change; absent ones stay."""

    display_name: str | msgspec.UnsetType = msgspec.UNSET
    weight: float | msgspec.UnsetType = msgspec.UNSET
    tier: Literal["premium", "standard", "opportunistic"] | msgspec.UnsetType = msgspec.UNSET
    allow_preemption: bool | msgspec.UnsetType = msgspec.UNSET
    can_preempt_others: bool | msgspec.UnsetType = msgspec.UNSET
    preemption_budget_per_hour: Limit | msgspec.UnsetType = msgspec.UNSET
    unix_user: str | msgspec.UnsetType = msgspec.UNSET
    time_zone: str | msgspec.UnsetType = msgspec.UNSET


class NewName(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    name: str


def _values(changes: msgspec.Struct) -> dict[str, Any]:
    return {k: v for k, v in msgspec.structs.asdict(changes).items() if v is not msgspec.UNSET}


_TENANTS = """
    SELECT t.id, t.name, t.display_name, t.weight, t.tier, t.allow_preemption, t.can_preempt_others,
           t.preemption_budget_per_hour, t.unix_user, t.time_zone, t.created_at, t.archived_at,
           json_build_object('max_gpus', q.max_gpus, 'max_gpu_memory_mb', q.max_gpu_memory_mb,
               'max_cpu_cores', q.max_cpu_cores, 'max_memory_mb', q.max_memory_mb,
               'max_concurrent_jobs', q.max_concurrent_jobs, 'max_gpus_per_user', q.max_gpus_per_user,
               'max_queued_jobs', q.max_queued_jobs, 'max_deferred_jobs', q.max_deferred_jobs,
               'max_gpus_by_model', coalesce(q.max_gpus_by_model, '{{}}'),
               'default_runtime_minutes', q.default_runtime_minutes,
               'guaranteed_gpus', coalesce(q.guaranteed_gpus, 0), 'version', coalesce(q.version, 0)) AS quota,
           u.in_use, u.pending_jobs
      FROM tenants_tenant t LEFT JOIN tenants_quota q ON q.tenant_id = t.id
      JOIN ({tenant_use}) u ON u.tenant_id = t.id
     WHERE (%(ids)s::bigint[] IS NULL OR t.id = ANY(%(ids)s)) AND (%(with_archived)s OR t.archived_at IS NULL)
     ORDER BY t.name
"""


def represent_tenants(ids: list[int] | None, *, with_archived: bool = True) -> list[dict[str, Any]]:
    """Represent tenants (None: all) for the API and pages, with limits and current use."""
    rows = query(_TENANTS.format(tenant_use=hook("tenant_use")), {"ids": ids, "with_archived": with_archived})
    times = ("created_at", "archived_at")
    return [{**row, **{name: rfc3339(row[name]) for name in times}} for row in rows]


def _represent(tenant_id: int) -> dict[str, Any]:
    return represent_tenants([tenant_id])[0]


def find_tenant(name: str, caller: Identity) -> Tenant:
    """Return the tenant. 404 if it does not exist, and if the caller cannot see it."""
    tenant = Tenant.objects.filter(name=name).first() if "\x00" not in name else None
    if tenant is None or not caller.sees(tenant.pk):
        raise not_found(f"tenant '{name[:63]}'")
    return tenant


def owned_tenant(request: Request, name: str) -> Tenant:
    """Return the tenant. 404 as `find_tenant`, 403 if the caller is not an owner."""
    caller = identity(request)
    tenant = find_tenant(name, caller)
    caller.require(Role.OWNER, tenant.pk, f"tenant '{name}'")
    return tenant


def selected_tenants(filters: Mapping[str, str], caller: Identity) -> Sequence[int] | None:
    """Return the tenant that a list is filtered by, else those that the caller sees; None: all."""
    return [find_tenant(filters["tenant"], caller).pk] if "tenant" in filters else caller.visible_tenants()


class Tenants(APIView):
    @documented(
        "List the tenants that you belong to (admins: all)",
        tag="tenants",
        who="anybody",
        answer=Page[TenantData],
        parameters={"archived": "true: include archived tenants (`archived_at`)"},
        refusals=(400, 401, 403),
    )
    def get(self, request: Request) -> Response:
        """With `quota`, `in_use` and `pending_jobs`. Without archived tenants, unless `archived=true`."""
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
        """`name` has lower-case letters, digits and dashes. `weight`: 0.001 to 1000000. `tier`: `standard`, `premium`
        or `opportunistic`. `preemption_budget_per_hour` null: no limit on preemptions of its jobs. `unix_user` empty:
        the node chooses (docs/agent.md, Whose processes). `time_zone`, like Europe/Berlin: where the days of daily
        budgets begin."""
        caller = identity(request)
        caller.require_admin()
        fields = _values(read_body(request, NewTenant))
        limits = {k: v for k, v in msgspec.structs.asdict(fields.pop("quota")).items() if k != "version"}
        return Response(_represent(tenants.create_tenant(fields, actor=caller.username, quota=limits).pk), status=201)


class OneTenant(APIView):
    @documented("Read a tenant", tag="tenants", who="viewer", answer=TenantData)
    def get(self, request: Request, name: str) -> Response:
        return Response(_represent(find_tenant(name, identity(request)).pk))

    @documented("Change a tenant", tag="tenants", who="admin", body=TenantChanges, answer=TenantData)
    def patch(self, request: Request, name: str) -> Response:
        """Changes the fields in the body: all except `name` (`POST …/rename`) and `quota`."""
        caller = identity(request)
        tenant = find_tenant(name, caller)
        caller.require_admin()
        if changes := _values(read_body(request, TenantChanges)):
            tenants.change_tenant(tenant, changes, actor=caller.username)
        return Response(_represent(tenant.pk))


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
        """Its id stays, and with it jobs, use, history, members and tokens; service accounts become `program@name`. The
        old name is a 404 from then on, without a redirect, and free for another tenant. 409 `named_in_settings` while
        `GPUSCHED_OIDC_GROUPS` has the old name."""
        caller = identity(request)
        tenant = find_tenant(name, caller)
        caller.require_admin()
        rename.rename(tenant, read_body(request, NewName).name, actor=caller.username)
        return Response(_represent(tenant.pk))


class TenantQuota(APIView):
    @documented("Read a quota", tag="tenants", who="viewer", answer=Quota)
    def get(self, request: Request, name: str) -> Response:
        """Null: no limit. `max_gpus_by_model` is like `{"A100": 16}`, with words of the driver's model names. With
        `ETag`."""
        return self._answer(find_tenant(name, identity(request)).pk)

    @documented(
        "Replace a quota",
        tag="tenants",
        who="admin",
        body=QuotaFields,
        answer=EditedQuota,
        parameters={"dry_run": "true: return the quota after the edit and its effect, and change nothing"},
        refusals=(400, 401, 403, 404, 412),
    )
    def put(self, request: Request, name: str) -> Response:
        """Replaces all fields: an absent limit is none. Running jobs continue: a tenant above a lowered limit starts no
        new jobs until it is below. The answer has the `effect`; `dry_run=true` returns it and changes nothing. 400 for
        a limit without effect. `If-Match` (or `version`) prevents lost updates (412)."""
        caller = identity(request)
        tenant = find_tenant(name, caller)
        caller.require_admin()
        limits = _values(read_body(request, QuotaFields))
        version = if_match(request, "this quota", limits.pop("version"))
        tenants.checked_quota(tenant.pk, limits, expected_version=version)
        effect = hook("quota_effect")(tenant.pk, limits)
        if is_dry_run(request):
            now = _represent(tenant.pk)["quota"]
            return Response({**now, **limits, "status": "would_be_changed", "effect": effect})
        tenants.change_quota(tenant.pk, limits, actor=caller.username, expected_version=version)
        return self._answer(tenant.pk, status="changed", effect=effect)

    def _answer(self, tenant_id: int, **more: Any) -> Response:
        quota = _represent(tenant_id)["quota"]
        return Response({**quota, **more}, headers={"ETag": f'"{quota["version"]}"'})
