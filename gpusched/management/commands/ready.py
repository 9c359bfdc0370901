"""Ask this machine's web server whether it is ready, for supervisors and health checks.

Health checks run it every few seconds, so it loads no apps."""

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpusched import env
from gpusched.lib.web.local_address import direct, local_url


class Command(BaseCommand):
    help = "Exit with 0 if the web server of this machine is ready."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--wait", type=float, default=0, help="seconds to wait for it")

    def handle(self, *args: Any, **options: Any) -> None:
        present = env.read()
        url = local_url(present.http_host, present.http_port) + "/health"
        deadline = time.monotonic() + options["wait"]
        while not _answers(url):
            if time.monotonic() >= deadline:
                raise CommandError(f"{url} does not answer")
            time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        with direct.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
