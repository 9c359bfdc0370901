"""The requirements on a database. Without them requests fail later, some of them only for specific names.

A connection pooler that lends a session to one client after the other (PgBouncer's modes `transaction` and `statement`)
breaks session locks, LISTEN and prepared statements."""

from typing import Any, NamedTuple

from django.db import connection

from gpusched.lib.db.connections import connect

# Another client may take the session between the two queries.
_TRIES = 5
_SESSION = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"
# Settings of sessions: the required value, and what happens with another one.
_VALUES = {
    "default_transaction_isolation": ("read committed", "concurrent requests fail"),
    "default_transaction_read_only": ("off", "nothing can be written"),
    "array_nulls": ("on", "no node can join and no job can end"),
}


class Unmet(NamedTuple):
    """A requirement that the database does not meet, as a sentence, and the next step."""

    sentence: str
    next_step: str


def first_unmet() -> Unmet | None:
    """Return the first requirement that the database does not meet."""
    with connection.cursor() as cursor:
        names = ("server_encoding", "DateStyle", *_VALUES)
        cursor.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
        encoding, date_style, *values = cursor.fetchone()
    if encoding != "UTF8":
        step = "create it anew: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        return Unmet(f"the database has the encoding {encoding}, in which some names cannot be stored", step)
    if not date_style.startswith("ISO"):
        sentence = f"the database has the DateStyle '{date_style}', which its driver cannot read"
        return Unmet(sentence, _set("DateStyle", "ISO"))
    for (name, (required, effect)), value in zip(_VALUES.items(), values, strict=True):
        if value != required:
            return Unmet(f"{name} is {value}, so that {effect}", _set(name, required))
    with connect() as second:
        if any(_session(connection) == _session(second) for _ in range(_TRIES)):
            step = "set pool_mode = session for this database, or name PostgreSQL itself in GPUSCHED_DATABASE_URL"
            return Unmet("a connection pooler lends one session to several clients", step)
    return None


def _set(name: str, value: str) -> str:
    """Return the statement that sets it. It overrides one of the role alone, and that one of the database."""
    return f"ALTER ROLE … IN DATABASE … SET {name} = '{value}'"


def _session(client: Any) -> Any:
    with client.cursor() as cursor:
        cursor.execute(_SESSION)
        return cursor.fetchone()
