"""Write units of systemd for this installation's server; `gpusched-agent install` writes the agent's."""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpusched import env
from gpusched.lib.process import systemd
from gpusched.lib.process.systemd import DATABASE, TARGET, Installation, server_units


class Command(BaseCommand):
    help = "Write units of systemd for web server, workers and housekeeping; starts nothing."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--into", type=Path, default=Path("/etc/systemd/system"), help="directory of the units")
        parser.add_argument("--user", default="gpusched", help="Unix user of the server's parts")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            units = server_units(_installation(options["user"]))
            options["into"].mkdir(parents=True, exist_ok=True)
            if DATABASE not in units:  # of an earlier call, before there was a database of your own
                (options["into"] / DATABASE).unlink(missing_ok=True)
            for name, text in units.items():
                (options["into"] / name).write_text(text)
        except OSError as error:
            raise CommandError(f"{error.filename}: {error.strerror}; run it as root, or choose --into") from error
        self.stdout.write("\n".join(f"wrote {options['into'] / name}" for name in units))
        self.stdout.write(f"next: systemctl daemon-reload && systemctl enable --now {TARGET}")


def _installation(user: str) -> Installation:
    """Return what the units need, by the environment and by the settings that the units read."""
    of_units = systemd.settings_of_units(systemd.SETTINGS)
    theirs = env.read(dict(of_units))
    files_dir = settings.ENV.files_dir or theirs.files_dir
    writable = [Path(files_dir).absolute()] if files_dir else []
    if "GPUSCHED_DATA_DIR" in of_units:
        writable.append(theirs.data_dir.absolute())
    has_database = not (settings.ENV.database_url or theirs.database_url)
    return Installation(Path(sys.executable).parent, user, has_database, writable)
