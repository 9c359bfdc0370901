"""REST for webhooks: notices for programs, as signed requests."""

from typing import Any

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.notifications import DeliveryData, NoticeKind, WebhookData, WebhookWithSecret
from notifications import routes
from notifications.api import channels
from notifications.api.channels import MEMBER, OF_TENANT, OWN, fields_of
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
        return channels.list_visible(request, Channel.WEBHOOK)

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
        return channels.read(request, Channel.WEBHOOK, webhook_id)

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
        return channels.change(request, Channel.WEBHOOK, webhook_id, _fields(read_body(request, WebhookChanges)))

    @documented("Delete a webhook", tag="notifications", who=OWN, status=204)
    def delete(self, request: Request, webhook_id: int) -> Response:
        """With its deliveries."""
        return channels.delete(request, Channel.WEBHOOK, webhook_id)


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
        return channels.send_test(request, Channel.WEBHOOK, webhook_id)


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
