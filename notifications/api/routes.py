"""REST for routes: where notices go, for people."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.notifications import DeliveryData, NoticeKind, RouteData
from notifications import routes
from notifications.api import channels
from notifications.api.channels import MEMBER, OF_TENANT, OWN, fields_of
from notifications.models import Channel
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity


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
        return channels.list_visible(request, Channel.APPRISE)

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
        return channels.read(request, Channel.APPRISE, route_id)

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
        return channels.change(request, Channel.APPRISE, route_id, fields_of(read_body(request, RouteChanges)))

    @documented("Delete a route", tag="notifications", who=OWN, status=204)
    def delete(self, request: Request, route_id: int) -> Response:
        """With its deliveries."""
        return channels.delete(request, Channel.APPRISE, route_id)


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
        return channels.send_test(request, Channel.APPRISE, route_id)
