"""Shared by the REST of routes and of webhooks: both are routes, each of its own channel."""

from typing import Any

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response

from gpusched.lib.api.rest import read_query
from notifications import deliveries, routes
from notifications.models import Channel
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity

OWN = "own routes: anybody, else owner"
OF_TENANT = {"tenant": "name of a tenant; only those of this tenant"}
MEMBER = "own routes: anybody, else member"


def list_visible(request: Request, channel: Channel) -> Response:
    caller, filters = identity(request), read_query(request)
    tenant = find_tenant(filters["tenant"], caller).pk if "tenant" in filters else None
    items = routes.represent(routes.visible(channel, tenant, caller))
    return Response({"items": items, "next_cursor": None})


def read(request: Request, channel: Channel, route_id: int) -> Response:
    return Response(routes.represent([routes.find(route_id, channel, identity(request))])[0])


def change(request: Request, channel: Channel, route_id: int, changes: dict[str, Any]) -> Response:
    route = routes.change(route_id, channel, changes, identity(request))
    return Response({**routes.represent([route])[0], "status": "changed"})


def delete(request: Request, channel: Channel, route_id: int) -> Response:
    routes.delete(route_id, channel, identity(request))
    return Response(status=204)


def send_test(request: Request, channel: Channel, route_id: int) -> Response:
    """Answer with the delivery of the test."""
    caller = identity(request)
    return Response(deliveries.find(routes.send_test(route_id, channel, caller), caller))


def fields_of(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that are present in a body, by the names of the model."""
    values = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    if "enabled" in values:
        values["is_enabled"] = values.pop("enabled")
    return values
