"""Django's `migrate`, made to run while the system works: it waits for locks a moment at a time, and tries again. It
also waits for a database that is about to start, as beside it in a container."""

import time
from collections.abc import Callable
from pkgutil import iter_modules
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import OperationalError, ProgrammingError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.exceptions import MigrationSchemaMissing
from django.db.migrations.recorder import MigrationRecorder
from psycopg import errors

from gpusched.lib.db import requirements
from gpusched.lib.db.locks import Lock, locked, try_acquire
from gpusched.lib.db.outages import is_outage
from gpusched.lib.db.sql import rows
from gpusched.lib.db.views import are_current, install_views

# Requests queue behind a migration that waits for a table: short waits only slow them down. In a deadlock it gives up
# first: PostgreSQL would end a request after a second (deadlock_timeout).
LOCK_SECONDS = 0.5
PAUSE_SECONDS = 1.0
TRIES = 160
CONNECT_SECONDS = 60.0
# Timeouts of the role are for requests: a migration of many rows, or the wait for that of another process, would fail.
_NO_TIMEOUTS = "SELECT set_config('lock_timeout', '0', false), set_config('statement_timeout', '0', false)"
_APPS = ("jobs", "nodes", "tenants", "scheduling", "serving", "notifications")
_DENIED = errors.InsufficientPrivilege
# The last one: PostgreSQL's statement_timeout, which limits the wait for all views.
_BUSY = (errors.LockNotAvailable, errors.DeadlockDetected, errors.QueryCanceled)


class Command(migrate.Command):
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--tries", type=int, default=TRIES, help="number of tries to get a lock")

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Wait for the database before the system checks, which connect to it, too."""
        self._await(connections[options["database"]])
        return super().execute(*args, **options)

    def handle(self, *args: Any, tries: int = TRIES, **options: Any) -> None:
        """Migrate. Each migration is a transaction: one without its lock is rolled back, and earlier ones stay."""
        connection = connections[options["database"]]
        require_usable()
        with connection.cursor() as cursor:
            cursor.execute(_NO_TIMEOUTS)
        if not try_acquire(Lock.MIGRATE):
            self.stderr.write("waiting for another migration, or for a backup")
        with locked(Lock.MIGRATE):  # if two start together, one migrates, and the other finds nothing to do
            with connection.cursor() as cursor:
                cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{LOCK_SECONDS * 1000:.0f}ms"])
            try:
                if _is_of_newer_version(connection):
                    self.stderr.write(
                        "this database is of a newer version, whose tables this one can use; it stays as it is"
                    )
                    return
                self._retry(lambda: super(Command, self).handle(*args, **options), tries)
                self._retry(install_views, tries)
            except (MigrationSchemaMissing, ProgrammingError) as error:
                if not isinstance(error, MigrationSchemaMissing) and not isinstance(error.__cause__, _DENIED):
                    raise
                step = "make the user of GPUSCHED_DATABASE_URL its owner, and let it create in the schema public"
                detail = f"this user cannot create tables in the database: {str(error).splitlines()[0]}"
                raise CommandError(f"{detail}; {step}") from error
            finally:
                connection.close()  # and with it the setting and the lock

    def _await(self, connection: BaseDatabaseWrapper) -> None:
        """Wait until the database accepts connections."""
        ends_at, is_waiting = time.monotonic() + CONNECT_SECONDS, False
        while True:
            try:
                connection.ensure_connection()
                return
            except OperationalError as error:
                reason = str(error).splitlines()[0]
                if not is_outage(error) or time.monotonic() >= ends_at:
                    detail = f"cannot connect to the database: {reason}; check GPUSCHED_DATABASE_URL"
                    raise CommandError(detail) from error
                if not is_waiting:
                    self.stderr.write(f"waiting for the database: {reason}")
                is_waiting = True
                time.sleep(PAUSE_SECONDS)

    def _retry(self, run: Callable[[], Any], tries: int) -> None:
        for remaining in range(tries - 1, -1, -1):
            try:
                run()
                return
            except OperationalError as error:
                if not isinstance(error.__cause__, _BUSY):
                    raise
                if not remaining:
                    detail = f"a table was locked in each of {tries} tries of {LOCK_SECONDS:g} s: {error}".strip()
                    raise CommandError(f"{detail}; this migration changed nothing, run it again") from error
                self.stderr.write(f"a table is in use, trying again: {str(error).splitlines()[0]}")
                time.sleep(PAUSE_SECONDS)


def require_usable() -> None:
    """Refuse a database that does not meet the requirements."""
    if unmet := requirements.first_unmet():
        raise CommandError(f"{unmet.sentence}: {unmet.next_step}")


def is_needed() -> bool:
    """Return whether migrations or views are missing, without loading the migrations. A newer version's views serve
    this one, too."""
    if rows("SELECT 1 WHERE to_regclass('django_migrations') IS NULL"):
        return True
    own, applied = _own(), set(rows("SELECT app, name FROM django_migrations"))
    return not own <= applied or (own == applied and not are_current())


def is_newer(
    applied: set[tuple[str, str]], what: str = "backup", step: str = "restore it with that version; nothing was changed"
) -> bool:
    """Return whether a backup or database with these migrations has all of this version and later ones, as after a
    rollback. Raise an error if it has later ones and lacks some, as of a development version whose migrations are
    replaced."""
    own = _own()
    if not any(app in _APPS for app, _ in applied - own):
        return False
    if not own <= applied:
        raise CommandError(
            f"this {what} was made by a newer version, or by a development version before 0.1.0, whose tables differ:"
            f" {step}"
        )
    return True


def _own() -> set[tuple[str, str]]:
    folders = [(app.label, f"{app.path}/migrations") for app in apps.get_app_configs()]
    return {(label, module.name) for label, folder in folders for module in iter_modules([folder])}


def _is_of_newer_version(connection: BaseDatabaseWrapper) -> bool:
    applied = set(MigrationRecorder(connection).applied_migrations())
    return is_newer(applied, "database", "use the newer version, or choose a new database or a new data directory")
