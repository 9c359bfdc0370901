"""REST for endpoints."""

from typing import Any, Literal

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import still_there
from gpusched.lib.api.rest import (
    PAGED,
    decode_cursor,
    encode_cursor,
    if_match,
    is_true,
    page_limit,
    read_body,
    read_query,
)
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.serving import EndpointData
from jobs.submit.job_row import resolve_tenant
from serving.endpoints import endpoints
from serving.endpoints.representation import represent_endpoints
from serving.models import Endpoint
from tenants.api.tenants import find_tenant, selected_tenants
from tenants.auth.identity import Identity, identity
from tenants.people import members

Type = Literal["embedding", "llm", "diffusion", "other"]
_OF_TENANT = {"tenant": "name of the tenant; needed if several of yours have an endpoint of this name"}


class NewEndpoint(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`tenant` null: your only one. `template`: the job request of a replica, as for POST /jobs. `cost` null: 1 for
    embedding and other, 5 for llm, 10 for diffusion. `shares_replicas_with`: the name of an endpoint of it whose
    replicas serve this one, too, taking turns; its template is then that one's. `allowed_users` null: all members of
    it. `warm_up`: a command that a replica runs before its own, for at most `warm_up_seconds`, if pre-warming starts
    it."""

    name: str
    tenant: str | None = None
    template: dict[str, Any] = msgspec.field(default_factory=dict)
    shares_replicas_with: str | None = None
    type: Type = "other"
    cost: float | None = None
    protocol: Literal["batch", "openai"] = "batch"
    port: int | None = None
    allowed_users: list[str] | None = None
    max_batch: int = 8
    max_wait_ms: int = 10
    memory_per_request_mb: int = 0
    max_queue: int = 1000
    timeout_seconds: float = 30.0
    min_replicas: int = 0
    max_replicas: int = 1
    idle_seconds: int = 300
    prewarming: bool = True
    warm_up: list[str] | None = None
    warm_up_seconds: int = 300


class EndpointChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The fields to change; absent ones stay. Running replicas keep their template. `version`, as read, prevents lost
    updates."""

    template: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    cost: float | msgspec.UnsetType = msgspec.UNSET
    allowed_users: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    max_batch: int | msgspec.UnsetType = msgspec.UNSET
    max_wait_ms: int | msgspec.UnsetType = msgspec.UNSET
    memory_per_request_mb: int | msgspec.UnsetType = msgspec.UNSET
    max_queue: int | msgspec.UnsetType = msgspec.UNSET
    timeout_seconds: float | msgspec.UnsetType = msgspec.UNSET
    min_replicas: int | msgspec.UnsetType = msgspec.UNSET
    max_replicas: int | msgspec.UnsetType = msgspec.UNSET
    idle_seconds: int | msgspec.UnsetType = msgspec.UNSET
    prewarming: bool | msgspec.UnsetType = msgspec.UNSET
    warm_up: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    warm_up_seconds: int | msgspec.UnsetType = msgspec.UNSET
    version: int | None = None


class Endpoints(APIView):
    @documented(
        "List endpoints",
        tag="serving",
        who="viewer",
        answer=Page[EndpointData],
        parameters={"tenant": "name of a tenant", **PAGED},
    )
    def get(self, request: Request) -> Response:
        """Those of your own tenants, with their load now, by tenant and name."""
        caller, filters = identity(request), read_query(request)
        visible = selected_tenants(filters, caller)
        limit = page_limit(filters)
        after = decode_cursor(filters["cursor"], "endpoints", tuple[str, str]) if "cursor" in filters else None
        items = represent_endpoints(visible, after=after, limit=limit)
        is_full = len(items) == limit
        next_cursor = encode_cursor("endpoints", items[-1]["tenant"], items[-1]["name"]) if is_full else None
        return Response({"items": items, "next_cursor": next_cursor})

    @documented(
        "Create an endpoint",
        tag="serving",
        who="member",
        body=NewEndpoint,
        answer=EndpointData,
        status=201,
        refusals=(400, 401, 403, 404, 409, 413, 415, 422),
    )
    def post(self, request: Request) -> Response:
        """Its replicas are jobs of the caller. The first request, or `min_replicas`, starts one."""
        caller = identity(request)
        values = msgspec.structs.asdict(read_body(request, NewEndpoint))
        tenant_id, _ = resolve_tenant(JobRequest(tenant=values.pop("tenant")), caller)
        values["allowed_users"] = _users(values["allowed_users"], tenant_id, caller)
        endpoint = endpoints.create(tenant_id, values, caller)
        return Response({**_represent(endpoint), "status": "created"}, status=201)


class OneEndpoint(APIView):
    @documented("Read an endpoint", tag="serving", who="viewer", answer=EndpointData, parameters=_OF_TENANT)
    def get(self, request: Request, name: str) -> Response:
        """With its load now. With `ETag`."""
        endpoint = _find(request, name, identity(request))
        return _answer(endpoint)

    @documented(
        "Change an endpoint",
        tag="serving",
        who="own endpoints: member, else owner",
        body=EndpointChanges,
        answer=EndpointData,
        parameters=_OF_TENANT,
        refusals=(400, 401, 403, 404, 412, 413, 415, 422),
    )
    def patch(self, request: Request, name: str) -> Response:
        """Running replicas keep the `template` that they were started with. `If-Match` (or `version`) prevents lost
        updates (412)."""
        caller = identity(request)
        endpoint = _find(request, name, caller)
        body = msgspec.structs.asdict(read_body(request, EndpointChanges))
        version = if_match(request, "this endpoint", body.pop("version"))
        changes = {field: value for field, value in body.items() if value is not msgspec.UNSET}
        if "allowed_users" in changes:
            changes["allowed_users"] = _users(changes["allowed_users"], endpoint.tenant_id, caller)
        return _answer(endpoints.change(endpoint.pk, changes, caller, version), status="changed")

    @documented(
        "Remove an endpoint",
        tag="serving",
        who="own endpoints: member, else owner",
        status=204,
        parameters={**_OF_TENANT, "with_queue": "true: also if requests wait, which are then refused"},
        refusals=(400, 401, 403, 404, 409),
    )
    def delete(self, request: Request, name: str) -> Response:
        """Stops its replicas. 409 while it has unfinished requests, unless `with_queue=true`."""
        caller, filters = identity(request), read_query(request)
        endpoints.remove(_find(request, name, caller).pk, caller, with_queue=is_true(filters, "with_queue"))
        return Response(status=204)


class DrainEndpoint(APIView):
    @documented(
        "Drain an endpoint",
        tag="serving",
        who="own endpoints: member, else owner",
        answer=EndpointData,
        parameters=_OF_TENANT,
        operation_id="endpoints_drain",
    )
    def post(self, request: Request, name: str) -> Response:
        """It refuses new requests, and its replicas end once the waiting ones are done."""
        caller = identity(request)
        endpoint = endpoints.drain(_find(request, name, caller).pk, caller)
        return Response({**_represent(endpoint), "status": "draining"})


def _find(request: Request, name: str, caller: Identity) -> Endpoint:
    tenant = read_query(request).get("tenant")
    return endpoints.find(name, find_tenant(tenant, caller).pk if tenant else None, caller)


def _answer(endpoint: Endpoint, **more: str) -> Response:
    return Response({**_represent(endpoint), **more}, headers={"ETag": f'"{endpoint.version}"'})


def _represent(endpoint: Endpoint) -> dict[str, Any]:
    return still_there(represent_endpoints(None, [endpoint.pk]), f"endpoint '{endpoint.name}'")


def _users(names: list[str] | None, tenant_id: int, caller: Identity) -> list[int] | None:
    return None if names is None else members.user_ids("allowed_users", names, tenant_id, caller)
