"""Replace the database and the secret key by those of a backup."""

import fcntl
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpusched.lib.db.embedded import PostgresError
from gpusched.lib.ownership import open_lock
from gpusched.lib.process import backups
from gpusched.management.commands import migrate
from jobs.lifecycle.restored_ids import before_restore


class Command(BaseCommand):
    help = "Replace the database and the secret key by those of a backup; stop gpusched first."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="a file that `backup` has written")

    def handle(self, *args: Any, **options: Any) -> None:
        data_dir = settings.DATA_DIR
        data_dir.mkdir(parents=True, exist_ok=True)
        with open_lock(data_dir) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                url = settings.ENV.database_url
                jobs = backups.restore(options["file"], data_dir, url, before_restore, self._check)
            except BlockingIOError as error:
                raise CommandError(f"gpusched is running with the data in {data_dir}; stop it first") from error
            except (backups.BackupError, PostgresError, psycopg.Error, OSError) as error:
                raise CommandError(str(error)) from error
        key = data_dir / backups.KEY
        if settings.ENV.secret_key not in ("", key.read_text().strip()):
            self.stderr.write(
                f"GPUSCHED_SECRET_KEY is set, and is not the key of the backup: remove it, or set it to the content of"
                f" {key}, before you start gpusched. Otherwise no secret of a tenant can be read"
            )
        self.stdout.write(f"restored {jobs} jobs of {options['file']}; now start gpusched")

    def _check(self, migrations: backups.Migrations) -> None:
        if migrate.is_newer(migrations):
            self.stderr.write("the backup is of a newer version, whose tables this one can use")
