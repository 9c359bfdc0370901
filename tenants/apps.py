"""Tells Django of this app."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
