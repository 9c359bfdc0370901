"""`migrate` and the database that it connects to."""

import threading

import pytest
from django.core.management import CommandError, call_command

from gpusched.lib.db.connections import connect
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import execute
from gpusched.management.commands import migrate
from tests.postgres_proxy import proxied

pytestmark = pytest.mark.django_db(transaction=True)


def test_migrate_waits_for_a_database_that_starts(monkeypatch, capsys):
    monkeypatch.setattr(migrate, "PAUSE_SECONDS", 0.05)
    with proxied() as proxy:
        proxy.refuse()
        start = threading.Timer(0.5, proxy.come_back)
        start.start()
        call_command("migrate", verbosity=0)
        start.join()
    assert capsys.readouterr().err.count("waiting for the database: ") == 1


def test_migrate_names_the_setting_if_there_is_no_database(monkeypatch):
    monkeypatch.setattr(migrate, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(migrate, "CONNECT_SECONDS", 0.2)
    with proxied() as proxy:
        proxy.refuse()
        with pytest.raises(CommandError, match=r"Connection refused.*check GPUSCHED_DATABASE_URL"):
            call_command("migrate", verbosity=0)


def test_migrate_has_time_if_the_role_has_a_statement_timeout(monkeypatch):
    monkeypatch.setattr(migrate, "install_views", lambda: execute("SELECT pg_sleep(0.3)"))
    execute("SET statement_timeout = '200ms'")
    call_command("migrate", "--tries", "1", verbosity=0)


def test_migrate_waits_for_another_one_if_the_role_has_a_lock_timeout(monkeypatch, capsys):
    with connect() as other:
        other.execute("SELECT pg_advisory_lock(%s)", [Lock.MIGRATE])
        release = threading.Timer(0.5, other.execute, ["SELECT pg_advisory_unlock_all()"])
        monkeypatch.setattr(migrate, "require_usable", release.start)  # the step before the lock
        execute("SET lock_timeout = '100ms'")
        call_command("migrate", verbosity=0)
        release.join()
    assert "waiting for another migration, or for a backup" in capsys.readouterr().err


@pytest.fixture
def later():
    """A migration of a later version, which the database has."""
    execute("INSERT INTO django_migrations (app, name, applied) VALUES ('serving', '9999_later', now())")
    yield
    execute("DELETE FROM django_migrations WHERE name = '9999_later'")


def test_migrate_leaves_the_database_of_a_newer_version_as_it_is(later, monkeypatch, capsys):
    """After a rollback, the unit of the web server and the containers run it first: they must start."""
    monkeypatch.setattr(migrate, "install_views", lambda: pytest.fail("the views of the newer version serve both"))
    call_command("migrate", verbosity=0)
    assert "of a newer version" in capsys.readouterr().err


def test_migrate_refuses_a_database_that_lacks_an_own_migration_and_has_an_unknown_one(later):
    execute("UPDATE django_migrations SET app = 'x' WHERE app = 'serving' AND name < '9'")
    try:
        with pytest.raises(CommandError, match="by a newer version, or by a development version"):
            call_command("migrate", verbosity=0)
    finally:
        execute("UPDATE django_migrations SET app = 'serving' WHERE app = 'x'")


def test_a_migrated_database_needs_nothing_also_if_it_is_of_a_newer_version(later, monkeypatch):
    monkeypatch.setattr(migrate, "are_current", lambda: False)  # its views are the newer ones
    assert not migrate.is_needed()
    execute("DELETE FROM django_migrations WHERE name = '9999_later'")
    assert migrate.is_needed()
    monkeypatch.undo()
    assert not migrate.is_needed()
    execute("UPDATE django_migrations SET app = 'x' WHERE app = 'serving'")
    try:
        assert migrate.is_needed()
    finally:
        execute("UPDATE django_migrations SET app = 'serving' WHERE app = 'x'")
