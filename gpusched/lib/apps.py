"""Register gpusched.lib with Django: it owns two tables."""

from django.apps import AppConfig

from gpusched.lib.db import timestamp_loader


class LibConfig(AppConfig):
    name = "gpusched.lib"
    label = "lib"

    def ready(self) -> None:
        timestamp_loader.use_compiled_loader()
