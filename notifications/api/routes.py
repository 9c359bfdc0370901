"""REST for routes: where notices go, for people."""

from typing import Any

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body, read_query
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.notifications import DeliveryData, NoticeKind, RouteData
from notifications import deliveries, routes
from notifications.models import Channel
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity

OWN = "own routes: anybody, else owner"
OF_TENANT = {"tenant": "name of a tenant; only those of this tenant"}
MEMBER = "own routes: anybody, else member"


class NewRoute(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`target`: an address of Apprise, such as `mailtos://user:password@smtp.example.com?to=ada@example.com`; it is
    stored sealed, and not shown again. `tenant` null: your own route. `time_zone` null: that of the tenant, or UTC.
    Between `quiet_from` and `quiet_until`, like 22:00 and 07:00, messages wait. `digest_minutes`: messages are
    collected for this time; 0: not."""

    name: str
    target: str
    kinds: list[NoticeKind]
    tenant: str | None = None
    enabled: bool = True
    time_zone: str | None = None
    quiet_from: str | None = None
    quiet_until: str | None = None
    digest_minutes: int = 0


class RouteChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The fields to change; absent ones stay."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    target: str | msgspec.UnsetType = msgspec.UNSET
    kinds: list[NoticeKind] | msgspec.UnsetType = msgspec.UNSET
    enabled: bool | msgspec.UnsetType = msgspec.UNSET
    time_zone: str | msgspec.UnsetType = msgspec.UNSET
    quiet_from: str | msgspec.UnsetType | None = msgspec.UNSET
    quiet_until: str | msgspec.UnsetType | None = msgspec.UNSET
    digest_minutes: int | msgspec.UnsetType = msgspec.UNSET


class Routes(APIView):
    @documented(
        "List routes of notifications", tag="notifications", who="anybody", answer=Page[RouteData], parameters=OF_TENANT
    )
    def get(self, request: Request) -> Response:
        """Your own, and those of tenants in which you are a member, without the secrets of their targets. Not paged."""
        caller, filters = identity(request), read_query(request)
        tenant = find_tenant(filters["tenant"], caller).pk if "tenant" in filters else None
        items = routes.represent(routes.visible(Channel.APPRISE, tenant, caller))
        return Response({"items": items, "next_cursor": None})

    @documented(
        "Create a route",
        tag="notifications",
        who=OWN,
        body=NewRoute,
        answer=RouteData,
        status=201,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    )
    def post(self, request: Request) -> Response:
        """Targets at addresses that are not public are refused, unless an admin allows them."""
        caller, values = identity(request), fields_of(read_body(request, NewRoute))
        tenant_name = values.pop("tenant")
        if values["time_zone"] is None:
            del values["time_zone"]
        tenant = find_tenant(tenant_name, caller) if tenant_name is not None else None
        route = routes.create(Channel.APPRISE, tenant, values, caller)
        return Response({**routes.represent([route])[0], "status": "created"}, status=201)


class OneRoute(APIView):
    @documented("Read a route", tag="notifications", who=MEMBER, answer=RouteData)
    def get(self, request: Request, route_id: int) -> Response:
        """Without the secrets of its target."""
        return Response(routes.represent([routes.find(route_id, Channel.APPRISE, identity(request))])[0])

    @documented(
        "Change a route",
        tag="notifications",
        who=OWN,
        body=RouteChanges,
        answer=RouteData,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    )
    def patch(self, request: Request, route_id: int) -> Response:
        """Turned off, it gets nothing, and what waits for it is given up."""
        changes = fields_of(read_body(request, RouteChanges))
        route = routes.change(route_id, Channel.APPRISE, changes, identity(request))
        return Response({**routes.represent([route])[0], "status": "changed"})

    @documented("Delete a route", tag="notifications", who=OWN, status=204)
    def delete(self, request: Request, route_id: int) -> Response:
        """With its deliveries."""
        routes.delete(route_id, Channel.APPRISE, identity(request))
        return Response(status=204)


class TestRoute(APIView):
    @documented(
        "Send a test message",
        tag="notifications",
        who=OWN,
        answer=DeliveryData,
        refusals=(400, 401, 403, 404, 409),
    )
    def post(self, request: Request, route_id: int) -> Response:
        """Sent within about a second, also in quiet hours; read the delivery to see how it went."""
        caller = identity(request)
        delivery_id = routes.send_test(route_id, Channel.APPRISE, caller)
        return Response(deliveries.find(delivery_id, caller))


def fields_of(body: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that are present in a body, by the names of the model."""
    values = {name: value for name, value in msgspec.structs.asdict(body).items() if value is not msgspec.UNSET}
    if "enabled" in values:
        values["is_enabled"] = values.pop("enabled")
    return values
