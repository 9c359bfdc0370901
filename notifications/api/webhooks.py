"""REST for webhooks: notices for programs, as signed requests."""

from typing import Any

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body, read_query
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.notifications import DeliveryData, NoticeKind, WebhookData, WebhookWithSecret
from notifications import deliveries, routes
from notifications.api.routes import MEMBER, OF_TENANT, OWN, fields_of
from notifications.models import Channel
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity


class NewWebhook(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`url` is stored sealed, and shown without its path. `tenant` null: your own webhook."""

    name: str
    url: str
    kinds: list[NoticeKind]
    tenant: str | None = None
    enabled: bool = True


class WebhookChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The fields to change; absent ones stay."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    url: str | msgspec.UnsetType = msgspec.UNSET
    kinds: list[NoticeKind] | msgspec.UnsetType = msgspec.UNSET
    enabled: bool | msgspec.UnsetType = msgspec.UNSET


class Webhooks(APIView):
    @documented("List webhooks", tag="notifications", who="anybody", answer=Page[WebhookData], parameters=OF_TENANT)
    def get(self, request: Request) -> Response:
        """Your own, and those of tenants in which you are a member, without their secrets. Not paged."""
        caller, filters = identity(request), read_query(request)
        tenant = find_tenant(filters["tenant"], caller).pk if "tenant" in filters else None
        items = routes.represent(routes.visible(Channel.WEBHOOK, tenant, caller))
        return Response({"items": items, "next_cursor": None})

    @documented(
        "Create a webhook",
        tag="notifications",
        who=OWN,
        body=NewWebhook,
        answer=WebhookWithSecret,
        status=201,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    )
    def post(self, request: Request) -> Response:
        """The answer has the secret of its signatures (HMAC-SHA256, as Standard Webhooks says), which is not shown
        again. Addresses that are not public are refused, unless an admin allows them."""
        caller, values = identity(request), _fields(read_body(request, NewWebhook))
        tenant_name = values.pop("tenant")
        tenant = find_tenant(tenant_name, caller) if tenant_name is not None else None
        route, secret = routes.create_webhook(tenant, values, caller)
        return Response({**routes.represent([route])[0], "secret": secret, "status": "created"}, status=201)


class OneWebhook(APIView):
    @documented("Read a webhook", tag="notifications", who=MEMBER, answer=WebhookData)
    def get(self, request: Request, webhook_id: int) -> Response:
        """Without its secret."""
        return Response(routes.represent([routes.find(webhook_id, Channel.WEBHOOK, identity(request))])[0])

    @documented(
        "Change a webhook",
        tag="notifications",
        who=OWN,
        body=WebhookChanges,
        answer=WebhookData,
        refusals=(400, 401, 403, 404, 409, 413, 415),
    )
    def patch(self, request: Request, webhook_id: int) -> Response:
        """Turned off, it gets nothing, and what waits for it is given up."""
        changes = _fields(read_body(request, WebhookChanges))
        route = routes.change(webhook_id, Channel.WEBHOOK, changes, identity(request))
        return Response({**routes.represent([route])[0], "status": "changed"})

    @documented("Delete a webhook", tag="notifications", who=OWN, status=204)
    def delete(self, request: Request, webhook_id: int) -> Response:
        """With its deliveries."""
        routes.delete(webhook_id, Channel.WEBHOOK, identity(request))
        return Response(status=204)


class TestWebhook(APIView):
    @documented(
        "Send a test request",
        tag="notifications",
        who=OWN,
        answer=DeliveryData,
        refusals=(400, 401, 403, 404, 409),
    )
    def post(self, request: Request, webhook_id: int) -> Response:
        """Sent within about a second; read the delivery to see how it went."""
        caller = identity(request)
        delivery_id = routes.send_test(webhook_id, Channel.WEBHOOK, caller)
        return Response(deliveries.find(delivery_id, caller))


class RotateSecret(APIView):
    @documented("Replace the secret of a webhook", tag="notifications", who=OWN, answer=WebhookWithSecret)
    def post(self, request: Request, webhook_id: int) -> Response:
        """For 24 hours both secrets sign each request, so that receivers can change over."""
        route, secret = routes.rotate_secret(webhook_id, identity(request))
        return Response({**routes.represent([route])[0], "secret": secret, "status": "changed"})


def _fields(body: msgspec.Struct) -> dict[str, Any]:
    values = fields_of(body)
    if "url" in values:
        values["target"] = values.pop("url")
    return values
