"""The Django app of endpoints, replicas and inference requests."""

from django.apps import AppConfig


class ServingConfig(AppConfig):
    name = "serving"
