"""Columns sent to PostgreSQL, and times read from it, keep their values."""

import math
from datetime import UTC, datetime

import pytest
from django.db import connection

from gpusched.lib.db.sql import columns, rows
from gpusched.protocol.states import JobState

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("bigint", [1, None, -(2**62)]),
        ("float8", [0.1, None, 3, 1e300, -0.0, math.inf]),
        ("bool", [True, False, None]),
        ("text", ["", "a b", None, '"', "\\", "{,}", "NULL", "null", "ä\n"]),
        ("text", [JobState.RUNNING, "pending"]),
        ("text", []),
        ("text", [None]),
        ("timestamptz", [datetime(2030, 1, 31, 8, tzinfo=UTC), None]),
    ],
)
def test_column_arrives_unchanged(kind, values):
    result = rows(f"SELECT * FROM unnest(%s::{kind}[])", columns([(value,) for value in values], 1))
    assert [value for (value,) in result] == values


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2030, 1, 31, 8, 0, 0, 123456, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
)
def test_time_is_read_in_utc_to_the_microsecond(moment):
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::timestamptz", [moment])
        [(read,)] = cursor.fetchall()
    assert read == moment
    assert read.tzinfo is UTC
