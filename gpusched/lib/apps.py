"""Tells Django of the ground floor, which owns one table: histograms."""

from django.apps import AppConfig

from gpusched.lib import timestamps


class LibConfig(AppConfig):
    name = "gpusched.lib"
    label = "lib"

    def ready(self) -> None:
        timestamps.read_fast()
