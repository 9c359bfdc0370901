"""Run one web process in the foreground, for a supervisor such as systemd."""

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from gpusched.env import CONFIG
from gpusched.installation import SERVER_ROOT
from gpusched.lib.process.one_machine import web_command


class Command(BaseCommand):
    help = "Run a web process at GPUSCHED_HTTP_HOST and GPUSCHED_HTTP_PORT until SIGTERM; `up` does that by itself."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        os.environ["GPUSCHED_DATA_DIR"] = str(settings.DATA_DIR)
        if config := os.environ.get(CONFIG):
            os.environ[CONFIG] = os.path.abspath(config)
        os.chdir(SERVER_ROOT)
        command = web_command(["-b", settings.ENV.http_host, "-p", str(settings.ENV.http_port)])
        os.execv(sys.executable, command)  # noqa: S606
