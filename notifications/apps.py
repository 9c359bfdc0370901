"""The Django app of notifications: routes to people, webhooks to programs, and what is delivered to both."""

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "notifications"
