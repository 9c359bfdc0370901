"""Tells Django of this app."""

from django.apps import AppConfig


class NodesConfig(AppConfig):
    name = "nodes"
