"""Tells Django of the ground floor, which owns one table: histograms."""

from django.apps import AppConfig

from gpusched.lib.db import timestamp_loader


class LibConfig(AppConfig):
    name = "gpusched.lib"
    label = "lib"

    def ready(self) -> None:
        timestamp_loader.read_fast()
