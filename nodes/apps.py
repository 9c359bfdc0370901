"""Register this app with Django."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    name = "nodes"
