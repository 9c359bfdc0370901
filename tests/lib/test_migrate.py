"""`migrate` and the database that it connects to."""

import threading

import pytest
from django.core.management import CommandError, call_command

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
