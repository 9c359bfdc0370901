"""Write the database and the secret key into one file."""

from argparse import ArgumentParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpusched.lib.process import backups
from gpusched.settings import database_url


class Command(BaseCommand):
    help = "Back up the database and the secret key into one file; gpusched may run."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--into", type=Path, default=settings.DATA_DIR / "backups", help="directory of the file")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            file = backups.back_up(
                settings.DATA_DIR, database_url(), settings.SECRET_KEY, options["into"], datetime.now(UTC)
            )
        except (backups.BackupError, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{file} ({file.stat().st_size >> 10} KiB); copy it to another machine")
