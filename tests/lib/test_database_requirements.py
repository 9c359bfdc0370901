"""A database with which requests would fail later is refused before the first migration."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from gpusched.env import Env
from gpusched.lib.db import connections, requirements
from gpusched.management import server_doctor as doctor
from tests.lib.test_server_doctor import NOW

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

    monkeypatch.setattr(requirements, "connect", connect)


def test_database_of_its_own_meets_the_requirements() -> None:
    assert requirements.first_unmet() is None


@pytest.mark.usefixtures("_pooler")
@pytest.mark.parametrize("command", ["migrate", "bootstrap"])
def test_pooler_that_lends_sessions_is_refused(command: str, tmp_path: Any) -> None:
    with pytest.raises(CommandError, match="pool_mode = session"):
        call_command(command)
    [finding] = [one for one in doctor.examine(Env(), tmp_path, NOW) if one.check == "requirements"]
    assert finding.level == "fail"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DateStyle", "German"),
        ("default_transaction_isolation", "serializable"),
        ("default_transaction_read_only", "on"),
        ("array_nulls", "off"),
    ],
)
def test_setting_with_which_requests_fail_is_refused(name: str, value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET {name} = '{value}'")
    try:
        with pytest.raises(CommandError, match=f"ALTER ROLE … IN DATABASE … SET {name}"):
            call_command("migrate")
    finally:
        connection.close()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_encoding_that_lacks_characters_is_refused(encoding: str) -> None:
    with other_database(f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"):
        with pytest.raises(CommandError, match=encoding):
            call_command("migrate")


def test_user_who_cannot_create_tables_is_refused() -> None:
    with other_database("TEMPLATE template0") as name:
        with psycopg.connect(**connections.connection_parameters() | {"dbname": name}) as own:
            own.execute(f"ALTER DATABASE {name} SET search_path = nowhere")
        connection.close()
        with pytest.raises(CommandError, match="cannot create tables"):
            call_command("migrate")


def test_user_who_has_a_schema_but_no_right_to_create_in_public_is_refused() -> None:
    with other_database("TEMPLATE template0") as name:
        with psycopg.connect(**connections.connection_parameters() | {"dbname": name}) as own:
            own.execute("CREATE SCHEMA own; GRANT ALL ON SCHEMA own TO pg_monitor")
            own.execute(f"ALTER DATABASE {name} SET search_path = own")
            own.execute(f"ALTER DATABASE {name} SET role = pg_monitor")
        connection.close()
        with pytest.raises(CommandError, match=r"permission denied for schema public; .* create in the schema public"):
            call_command("migrate", verbosity=0)


@contextmanager
def other_database(form: str) -> Iterator[str]:
    """Let Django use a new database of this form, with a name of its own."""
    before = connection.settings_dict["NAME"]
    name = f"{before}_other"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}" {form}')
    connection.close()
    connection.settings_dict["NAME"] = name
    try:
        yield name
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}"')
