"""Short ways to routes, to what happens, and to what a sender does about it."""

from typing import Any

from django.contrib.auth.models import User

from gpusched.lib.db.sql import execute
from notifications import routes
from notifications.models import CHOSEN_KINDS, Channel, Route
from notifications.sending.sender import Sender
from tenants.models import Tenant
from tests.factories import identity_for

ALL = [kind for kind in CHOSEN_KINDS if kind != "incident"]


def webhook(owner: User, url: str, tenant: Tenant | None = None, secret: str = "", **fields: Any) -> Route:
    """A webhook for all kinds unless said otherwise."""
    values = {"name": "hook", "target": url, "kinds": ALL, **fields}
    route, _ = routes.create_webhook(tenant, values, identity_for(owner))
    return route


def mail(owner: User, target: str, tenant: Tenant | None = None, **fields: Any) -> Route:
    values = {"name": "mail", "target": target, "kinds": ALL, **fields}
    return routes.create(Channel.APPRISE, tenant, values, identity_for(owner))


def work(sender: Sender, ticks: int = 3) -> None:
    """Lets the sender do all that is due now."""
    for _ in range(ticks):
        sender._last_runs.clear()
        sender.tick()
        sender.wait(60)


def pass_time(seconds: float) -> None:
    """Moves what is scheduled nearer by so much."""
    for column in ("next_at", "created_at", "expires_at"):
        execute(f"UPDATE notifications_delivery SET {column} = {column} - make_interval(secs => %s)", [seconds])
    for column in ("retry_at", "last_sent_at"):
        execute(f"UPDATE notifications_route SET {column} = {column} - make_interval(secs => %s)", [seconds])
