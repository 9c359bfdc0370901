"""The PostgreSQL of the tests: one server for the whole run, its data thrown away."""

import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import TransactionTestCase

from gpusched.lib.db.connections import django_database
from gpusched.lib.db.embedded import FAST, Server
from gpusched.lib.process.children import die_with_parent


def start() -> Server | None:
    """Start the server and point Django at it. Return None if another process of this run has done so already."""
    if os.environ.get("GPUSCHED_DATABASE_URL"):
        return None
    directory = Path(tempfile.mkdtemp(prefix="gpusched-test-"))
    directory.chmod(0o755)
    server = Server(directory, settings=FAST)
    server.start(preexec=die_with_parent(signal.SIGQUIT))
    os.environ["GPUSCHED_DATABASE_URL"] = server.url()
    os.environ["MIGRATED_DATABASE"] = "migrated"
    connections.databases["default"].update(django_database(server.url()))
    return server


def stop(server: Server) -> None:
    server.remove()


@contextmanager
def migrated_once(place: Path) -> Iterator[None]:
    """Of the processes of a run, let the first one migrate, and the others copy its database: migrations take seven
    seconds. `place`: a directory that they share."""
    name, is_migrated = os.environ.get("MIGRATED_DATABASE"), place / "migrated"
    if name is None or "PYTEST_XDIST_WORKER" not in os.environ:  # one process, or the server of the person who tests
        yield
        return
    with (place / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_migrated.exists():
            fcntl.flock(lock, fcntl.LOCK_UN)
            connection.settings_dict["TEST"].update(TEMPLATE=name, MIGRATE=False)
            yield
            return
        yield
        source = connection.settings_dict["NAME"]
        connection.close()
        with psycopg.connect(os.environ["GPUSCHED_DATABASE_URL"], autocommit=True) as server:
            server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"')
        is_migrated.touch()


# Migrations fill these, and no test changes them.
_KEPT = {"django_migrations", "django_content_type", "auth_permission"}
_MAX_BYTES = 1 << 20
# The tables with rows; none if another connection is about to add some, or if one is large or full of dead rows.
_FILLED = """
    SELECT CASE WHEN EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
                                AND backend_xid IS NOT NULL AND pid <> pg_backend_pid())
                  OR EXISTS (SELECT 1 FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
                                AND pg_relation_size(oid) > %s)
           THEN NULL ELSE ARRAY(%s) END
"""


def empty_tables_fast() -> None:
    """Let the tests that commit delete the few rows that they left, which takes a tenth of the time of Django's
    TRUNCATE of all tables."""
    TransactionTestCase._fixture_teardown = _empty_tables  # type: ignore[attr-defined]


def _empty_tables(_: TransactionTestCase) -> None:
    names = set(connection.introspection.django_table_names(only_existing=True, include_views=False)) - _KEPT
    filled = " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM \"{name}\")" for name in sorted(names))
    with connection.cursor() as cursor:
        cursor.execute(_FILLED % (_MAX_BYTES, filled))
        [tables] = cursor.fetchone()
    if tables is None:
        # Ids must go on: this process remembers up to which id all events are settled (jobs/events/log.py).
        call_command("flush", verbosity=0, interactive=False, reset_sequences=False)
    elif tables:
        with transaction.atomic(), connection.cursor() as cursor:
            # No trigger and no foreign key is checked, as with TRUNCATE.
            cursor.execute("SET LOCAL session_replication_role = replica")
            cursor.execute(";".join(f'DELETE FROM "{name}"' for name in tables))
