"""The requirements on a database. Without them requests fail later, some of them only for specific names.

A connection pooler that lends a session to one client after the other (PgBouncer's modes `transaction` and `statement`)
breaks session locks, LISTEN and prepared statements."""

from typing import Any, NamedTuple

from django.db import connection

from gpusched.lib.db.connections import connect

# Another client may take the session between the two queries.
_TRIES = 5
_SESSION = "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()"


class Unmet(NamedTuple):
    """A requirement that the database does not meet, as a sentence, and the next step."""

    sentence: str
    next_step: str


def first_unmet() -> Unmet | None:
    """Return the first requirement that the database does not meet."""
    with connection.cursor() as cursor:
        names = ("server_encoding", "DateStyle", "default_transaction_isolation")
        cursor.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names))
        encoding, date_style, isolation = cursor.fetchone()
    if encoding != "UTF8":
        step = "create it anew: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
        return Unmet(f"the database has the encoding {encoding}, in which some names cannot be stored", step)
    if not date_style.startswith("ISO"):
        step = "ALTER DATABASE … SET DateStyle = 'ISO'"
        return Unmet(f"the database has the DateStyle '{date_style}', which its driver cannot read", step)
    if isolation != "read committed":
        step = "ALTER DATABASE … SET default_transaction_isolation = 'read committed'"
        return Unmet(f"the default_transaction_isolation is {isolation}, so that concurrent requests fail", step)
    with connect() as second:
        if any(_session(connection) == _session(second) for _ in range(_TRIES)):
            step = "set pool_mode = session for this database, or name PostgreSQL itself in GPUSCHED_DATABASE_URL"
            return Unmet("a connection pooler lends one session to several clients", step)
    return None


def _session(client: Any) -> Any:
    with client.cursor() as cursor:
        cursor.execute(_SESSION)
        return cursor.fetchone()
