"""Tells Django of this app."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"
