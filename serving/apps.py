"""The Django app of endpoints, replicas and inference requests."""

from django.apps import AppConfig


class ServingConfig(AppConfig):
    default_auto_field = "django.db.models.BigAutoField"
    name = "serving"
