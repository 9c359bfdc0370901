"""Tells Django of this app."""

from django.apps import AppConfig


class FrontendConfig(AppConfig):
    name = "frontend"
