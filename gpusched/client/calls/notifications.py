"""The calls for notifications: routes, webhooks and deliveries."""

from collections.abc import Sequence
from typing import TypedDict

from gpusched.client.transport.call import Call, delete, get, write
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.notifications import DeliveryData, RouteData, WebhookData, WebhookWithSecret


class RouteOptions(TypedDict, total=False):
    """Options of a route; docs/reference/rest.md, POST /notifications/routes."""

    enabled: bool
    time_zone: str
    quiet_from: str | None
    quiet_until: str | None
    digest_minutes: int


class RouteChanges(RouteOptions, total=False):
    """Changes of a route."""

    name: str
    target: str
    kinds: Sequence[str]


class WebhookChanges(TypedDict, total=False):
    """Changes of a webhook."""

    name: str
    url: str
    kinds: Sequence[str]
    enabled: bool


def notification_routes(tenant: str | None = None) -> Call[Page[RouteData]]:
    """Return your routes, and those of your tenants; `tenant`: only those of this one."""
    return get("/notifications/routes", Page[RouteData], tenant=tenant)


def notification_route(route_id: int) -> Call[RouteData]:
    """Return a route, without the secrets of its target."""
    return get(f"/notifications/routes/{route_id}", RouteData)


def create_notification_route(
    name: str, target: str, kinds: Sequence[str], tenant: str | None, options: RouteOptions
) -> Call[RouteData]:
    """Create a route to an address of Apprise. Without a tenant it is your own."""
    body = {"name": name, "target": target, "kinds": list(kinds), "tenant": tenant, **options}
    return write("POST", "/notifications/routes", RouteData, body)


def change_notification_route(route_id: int, changes: RouteChanges) -> Call[RouteData]:
    """Change fields of a route."""
    return write("PATCH", f"/notifications/routes/{route_id}", RouteData, dict(changes))


def delete_notification_route(route_id: int) -> Call[None]:
    """Delete a route with its deliveries."""
    return delete(f"/notifications/routes/{route_id}")


def try_notification_route(route_id: int) -> Call[DeliveryData]:
    """Send a test message, and return its delivery as pending."""
    return write("POST", f"/notifications/routes/{route_id}/test", DeliveryData)


def webhooks(tenant: str | None = None) -> Call[Page[WebhookData]]:
    """Return your webhooks, and those of your tenants; `tenant`: only those of this one."""
    return get("/webhooks", Page[WebhookData], tenant=tenant)


def webhook(webhook_id: int) -> Call[WebhookData]:
    """Return a webhook, without its secret."""
    return get(f"/webhooks/{webhook_id}", WebhookData)


def create_webhook(
    name: str, url: str, kinds: Sequence[str], *, tenant: str | None = None, enabled: bool = True
) -> Call[WebhookWithSecret]:
    """Create a webhook; only this answer has the secret of its signatures. Without a tenant it is your own."""
    body = {"name": name, "url": url, "kinds": list(kinds), "tenant": tenant, "enabled": enabled}
    return write("POST", "/webhooks", WebhookWithSecret, body)


def change_webhook(webhook_id: int, changes: WebhookChanges) -> Call[WebhookData]:
    """Change fields of a webhook."""
    return write("PATCH", f"/webhooks/{webhook_id}", WebhookData, dict(changes))


def delete_webhook(webhook_id: int) -> Call[None]:
    """Delete a webhook with its deliveries."""
    return delete(f"/webhooks/{webhook_id}")


def try_webhook(webhook_id: int) -> Call[DeliveryData]:
    """Send a test request, and return its delivery as pending."""
    return write("POST", f"/webhooks/{webhook_id}/test", DeliveryData)


def rotate_webhook_secret(webhook_id: int) -> Call[WebhookWithSecret]:
    """Replace the secret of a webhook; for a day the old one signs, too."""
    return write("POST", f"/webhooks/{webhook_id}/rotate-secret", WebhookWithSecret)


def deliveries(
    route: int | None = None, *, state: str | None = None, limit: int | None = None
) -> Call[Page[DeliveryData]]:
    """Return deliveries, newest first: of a route or webhook, or of all that you see. `limit` None: all."""
    return get("/notifications/deliveries", Page[DeliveryData], route=route, state=state, limit=limit)


def delivery(delivery_id: int) -> Call[DeliveryData]:
    """Return a delivery, with how its latest attempt went."""
    return get(f"/notifications/deliveries/{delivery_id}", DeliveryData)


def replay_delivery(delivery_id: int) -> Call[DeliveryData]:
    """Send an ended delivery again, under its id."""
    return write("POST", f"/notifications/deliveries/{delivery_id}/replay", DeliveryData)
