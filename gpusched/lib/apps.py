"""Tells Django of the ground floor, which owns one table: histograms."""

from django.apps import AppConfig


class LibConfig(AppConfig):
    name = "gpusched.lib"
    label = "lib"
