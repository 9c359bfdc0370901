"""A connection pooler that lends sessions is refused before anything relies on locks and notifications."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from gpusched.lib.db import connections, pooler
from gpusched.management import server_doctor as doctor

pytestmark = pytest.mark.django_db(transaction=True)


class Lent:
    """A second client to which a pooler lends the session of the first one, from its second query on."""

    def __init__(self, own: Any) -> None:
        self.clients = [own]

    def cursor(self) -> Any:
        return self.clients.pop().cursor() if self.clients else connection.cursor()


@pytest.fixture
def _pooler(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect() -> Iterator[Lent]:
        with connections.connect() as own:
            yield Lent(own)

    monkeypatch.setattr(pooler, "connect", connect)


def test_connections_to_postgresql_have_sessions_of_their_own() -> None:
    assert not pooler.is_between()


@pytest.mark.usefixtures("_pooler")
@pytest.mark.parametrize("command", ["migrate", "bootstrap"])
def test_pooler_that_lends_sessions_is_refused(command: str) -> None:
    with pytest.raises(CommandError, match="pool_mode = session"):
        call_command(command)


def test_doctor_reports_such_a_pooler() -> None:
    assert [finding.level for finding in doctor.check_pooler(is_pooled=True)] == ["fail"]
    assert [finding.level for finding in doctor.check_pooler(is_pooled=False)] == ["ok"]
