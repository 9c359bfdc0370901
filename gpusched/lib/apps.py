"""Register gpusched.lib with Django: it owns two tables."""

import gc

from django.apps import AppConfig

from gpusched.lib.db import timestamp_loader


class LibConfig(AppConfig):
    name = "gpusched.lib"
    label = "lib"

    def ready(self) -> None:
        gc.freeze()  # what has been loaded stays, and is never scanned
        gc.enable()  # disabled by the settings
        timestamp_loader.use_compiled_loader()
