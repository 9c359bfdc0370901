"""A kept connection that the server has closed is replaced before a request uses it, and a good one costs nothing."""

import psycopg
import pytest
from django.db import connections
from django.db.backends.postgresql import base

from gpusched.lib.db.connections import connection_parameters
from gpusched.lib.db.sql import prepared, query

pytestmark = pytest.mark.django_db(transaction=True)


def as_in_the_next_request():
    own = connections["default"]
    own.health_check_enabled = True  # type: ignore[attr-defined]
    own.health_check_done = False  # type: ignore[attr-defined]


def test_a_connection_that_the_server_has_closed_is_replaced():
    [before] = query("SELECT pg_backend_pid() AS pid")
    with psycopg.connect(**connection_parameters(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [before["pid"]])
    as_in_the_next_request()
    [after] = prepared("SELECT pg_backend_pid() AS pid")
    assert after["pid"] != before["pid"]


def test_a_connection_that_is_well_is_kept_and_not_asked(monkeypatch):
    [before] = query("SELECT pg_backend_pid() AS pid")
    monkeypatch.setattr(base.DatabaseWrapper, "is_usable", lambda self: pytest.fail("a statement for nothing"))
    as_in_the_next_request()
    assert prepared("SELECT pg_backend_pid() AS pid") == [before]
