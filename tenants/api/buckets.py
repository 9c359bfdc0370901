"""REST for token buckets."""

from typing import Any, Literal

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import still_there
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, read_body, read_query
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.serving import BucketData
from tenants import bucket_limits
from tenants.api.tenants import find_tenant, selected_tenants
from tenants.auth.identity import identity


class NewBucket(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`scope` tenant: all its users share the tokens; user: the named `user`, or each user if it is null, has own ones.
    `limits`: `tasks` take their cost, and `jobs` one token each. `daily_budget` null: none."""

    tenant: str
    scope: Literal["tenant", "user"]
    rate_per_second: float
    burst: float
    user: str | None = None
    limits: Literal["tasks", "jobs"] = "tasks"
    daily_budget: float | None = None


class BucketChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The fields to change; absent ones stay."""

    rate_per_second: float | msgspec.UnsetType = msgspec.UNSET
    burst: float | msgspec.UnsetType = msgspec.UNSET
    daily_budget: float | msgspec.UnsetType | None = msgspec.UNSET


class Buckets(APIView):
    @documented(
        "List token buckets",
        tag="serving",
        who="viewer",
        answer=Page[BucketData],
        parameters={"tenant": "name of a tenant", **PAGED},
    )
    def get(self, request: Request) -> Response:
        """Those of your own tenants, oldest first."""
        caller, filters = identity(request), read_query(request)
        visible = selected_tenants(filters, caller)
        limit = page_limit(filters)
        items = bucket_limits.represent(visible, after=cursor_number(filters, "buckets"), limit=limit)
        return Response(paged(items, limit, "buckets"))

    @documented(
        "Create a token bucket",
        tag="serving",
        who="admin",
        body=NewBucket,
        answer=BucketData,
        status=201,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    )
    def post(self, request: Request) -> Response:
        """It is full at first. One bucket of a tenant for each scope, user and kind of limit."""
        caller = identity(request)
        values = msgspec.structs.asdict(read_body(request, NewBucket))
        caller.require_admin()
        tenant = find_tenant(values.pop("tenant"), caller)
        bucket_id = bucket_limits.create(tenant, values, caller.username)
        return Response(_one(bucket_id), status=201)


class OneBucket(APIView):
    @documented(
        "Change a token bucket",
        tag="serving",
        who="admin",
        body=BucketChanges,
        answer=BucketData,
        refusals=(400, 401, 403, 404, 413, 415),
    )
    def patch(self, request: Request, bucket_id: int) -> Response:
        """Tokens that were taken stay taken."""
        identity(request).require_admin()
        body = msgspec.structs.asdict(read_body(request, BucketChanges))
        bucket_limits.change(bucket_id, {name: value for name, value in body.items() if value is not msgspec.UNSET})
        return Response(_one(bucket_id))

    @documented("Delete a token bucket", tag="serving", who="admin", status=204)
    def delete(self, request: Request, bucket_id: int) -> Response:
        """Its limit ends at once."""
        identity(request).require_admin()
        bucket_limits.delete(bucket_id)
        return Response(status=204)


def _one(bucket_id: int) -> dict[str, Any]:
    return still_there(bucket_limits.represent(None, bucket_id), f"bucket {bucket_id}")
