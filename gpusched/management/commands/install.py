"""Write units of systemd for this installation's server; `gpusched-agent install` writes the agent's."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpusched.lib.process.systemd import TARGET, Installation, server_units


class Command(BaseCommand):
    help = "Write units of systemd for web server, workers and housekeeping; starts nothing."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--into", type=Path, default=Path("/etc/systemd/system"), help="directory of the units")
        parser.add_argument("--user", default="gpusched", help="Unix user of the server's parts")

    def handle(self, *args: Any, **options: Any) -> None:
        where = Installation(Path(sys.executable).parent, options["user"], not settings.ENV.database_url)
        units = server_units(where)
        try:
            options["into"].mkdir(parents=True, exist_ok=True)
            for name, text in units.items():
                (options["into"] / name).write_text(text)
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}; run it as root, or choose --into") from error
        self.stdout.write("\n".join(f"wrote {options['into'] / name}" for name in units))
        self.stdout.write(f"next: systemctl daemon-reload && systemctl enable --now {TARGET}")
