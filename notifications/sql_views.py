"""Publish the tables of this app as views for the SQL of other apps: without targets and secrets."""

from gpusched.lib.db.views import published
from notifications.models import Delivery, Route

VIEWS = {
    "notifications_routes": published(Route, without=("sealed_target", "sealed_secret", "sealed_previous_secret")),
    "notifications_deliveries": published(Delivery),
}
