"""Register this app with Django."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
