"""Write the database and the secret key into one file."""

import fcntl
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpusched.lib.db.embedded import PostgresError
from gpusched.lib.ownership import open_lock
from gpusched.lib.process import backups
from gpusched.settings import database_url
from tenants import secrets


class Command(BaseCommand):
    help = "Back up the database and the secret key into one file; gpusched may run."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--into", type=Path, default=settings.DATA_DIR / "backups", help="directory of the file")
        parser.add_argument("--keep", type=int, help="then delete all but so many of the latest backups there")

    def handle(self, *args: Any, **options: Any) -> None:
        keep = options["keep"]
        if keep is not None and keep < 1:
            raise CommandError("--keep must be at least 1")
        try:
            with _database() as url, backups.without_migration(url):
                file = backups.back_up(settings.DATA_DIR, url, settings.SECRET_KEY, options["into"], datetime.now(UTC))
                is_usable = self._has_key(url)
            deleted = backups.remove_older(file, keep) if keep and is_usable else []
        except (backups.BackupError, PostgresError, psycopg.Error, OSError) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{file} ({file.stat().st_size >> 10} KiB); copy it to another machine")
        for older in deleted:
            self.stdout.write(f"deleted {older}")

    def _has_key(self, url: str) -> bool:
        """Return whether the secrets in the backup can be read with its key; otherwise warn."""
        with psycopg.connect(url) as database:
            if secrets.has_key(database):
                return True
        self.stderr.write(
            "the backup has another key than the server, and its secrets cannot be read with it: set"
            " GPUSCHED_SECRET_KEY (or GPUSCHED_SECRET_KEY_FILE) as for the server, and make another one"
        )
        return False


@contextmanager
def _database() -> Iterator[str]:
    """Yield the address of the database. The embedded one runs only while gpusched does: start it otherwise."""
    with open_lock(settings.DATA_DIR) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_embedded = not settings.ENV.database_url and (settings.DATA_DIR / "postgres").exists()
        except BlockingIOError:
            is_embedded = False  # gpusched runs, with its database
        if is_embedded:
            with backups.database(settings.DATA_DIR, "") as url:
                yield url
        elif url := database_url():
            yield url
        else:
            raise backups.BackupError(
                f"no server has used the data directory {settings.DATA_DIR}; set GPUSCHED_DATA_DIR to the server's data"
                " directory, or GPUSCHED_DATABASE_URL"
            )
