"""The methods of a client for notifications: routes, webhooks and deliveries."""

from collections.abc import Sequence
from typing import Unpack

from gpusched.client.aio.connection import AsyncConnection, items, single
from gpusched.client.calls import notifications
from gpusched.protocol.rest.notifications import RouteData, WebhookData


class AsyncNotificationMethods(AsyncConnection):
    """The methods of a client for notifications: routes, webhooks and deliveries."""

    notification_routes = items(notifications.notification_routes)
    notification_route = single(notifications.notification_route)
    delete_notification_route = single(notifications.delete_notification_route)
    try_notification_route = single(notifications.try_notification_route)
    webhooks = items(notifications.webhooks)
    webhook = single(notifications.webhook)
    create_webhook = single(notifications.create_webhook)
    delete_webhook = single(notifications.delete_webhook)
    try_webhook = single(notifications.try_webhook)
    rotate_webhook_secret = single(notifications.rotate_webhook_secret)
    deliveries = items(notifications.deliveries)
    delivery = single(notifications.delivery)
    replay_delivery = single(notifications.replay_delivery)

    async def create_notification_route(
        self,
        name: str,
        target: str,
        kinds: Sequence[str],
        *,
        tenant: str | None = None,
        **options: Unpack[notifications.RouteOptions],
    ) -> RouteData:
        """Create a route to an address of Apprise, such as `ntfys://ntfy.example.com/topic`.
        Without a tenant it is your own."""
        return await self.send(notifications.create_notification_route(name, target, kinds, tenant, options))

    async def change_notification_route(
        self, route_id: int, **changes: Unpack[notifications.RouteChanges]
    ) -> RouteData:
        """Change fields of a route."""
        return await self.send(notifications.change_notification_route(route_id, changes))

    async def change_webhook(self, webhook_id: int, **changes: Unpack[notifications.WebhookChanges]) -> WebhookData:
        """Change fields of a webhook."""
        return await self.send(notifications.change_webhook(webhook_id, changes))
