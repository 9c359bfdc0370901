"""A persistent connection that the server has closed is replaced before its use, and a healthy one costs nothing."""

import psycopg
import pytest
from django.db import connections
from django.db.backends.postgresql import base

from gpusched.lib.db.connections import connection_parameters
from gpusched.lib.db.sql import prepared, query

pytestmark = pytest.mark.django_db(transaction=True)


def as_in_the_next_request():
    wrapper = connections["default"]
    wrapper.health_check_enabled = True  # type: ignore[attr-defined]
    wrapper.health_check_done = False  # type: ignore[attr-defined]


def test_connection_closed_by_the_server_is_replaced():
    [first] = query("SELECT pg_backend_pid() AS pid")
    with psycopg.connect(**connection_parameters(), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [first["pid"]])
    as_in_the_next_request()
    [second] = prepared("SELECT pg_backend_pid() AS pid")
    assert second["pid"] != first["pid"]


def test_healthy_connection_is_reused_without_a_check(monkeypatch):
    [first] = query("SELECT pg_backend_pid() AS pid")
    monkeypatch.setattr(base.DatabaseWrapper, "is_usable", lambda self: pytest.fail("a needless statement"))
    as_in_the_next_request()
    assert prepared("SELECT pg_backend_pid() AS pid") == [first]
