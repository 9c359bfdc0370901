"""A statement that PostgreSQL has planned once finds its table changed by a migration (A57)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from gpusched.lib.sql import atomically, execute, prepared

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def table():
    execute("CREATE TABLE void_plans (one integer)")
    execute("INSERT INTO void_plans VALUES (1)")
    yield
    execute("DROP TABLE void_plans")


def change():
    """By another connection, as a migration does."""
    with ThreadPoolExecutor(1) as other:
        other.submit(_alter).result()


def _alter():
    execute("ALTER TABLE void_plans ADD COLUMN two integer DEFAULT 2")
    connection.close()


def test_it_is_planned_anew_on_another_connection():
    for _ in range(2):
        assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    for _ in range(2):
        assert prepared("SELECT * FROM void_plans") == [{"one": 1, "two": 2}]


def test_a_transaction_is_done_again():
    assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    times = []

    def work():
        times.append(1)
        execute("INSERT INTO void_plans VALUES (2)")
        return len(prepared("SELECT * FROM void_plans"))

    assert atomically(work) == 2, "what was written the first time is not there twice"
    assert len(times) == 2


def test_within_a_transaction_of_somebody_else_the_next_one_works():
    assert prepared("SELECT * FROM void_plans") == [{"one": 1}]
    change()
    with pytest.raises(Exception, match="cached plan"), transaction.atomic():
        prepared("SELECT * FROM void_plans")
    assert prepared("SELECT * FROM void_plans") == [{"one": 1, "two": 2}]
