"""Recognize a connection pooler that lends a session of PostgreSQL to one client after the other (PgBouncer's modes
`transaction` and `statement`). Session locks, LISTEN and prepared statements do not work through it."""

from typing import Any

from django.db import connection

from gpusched.lib.db.connections import connect

ADVICE = "set pool_mode = session for this database, or name PostgreSQL itself in GPUSCHED_DATABASE_URL"
# Another client may take the session between the two queries.
_TRIES = 5
_SESSION = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"


def is_between() -> bool:
    """Return whether a second connection got the session of the first one, which is open, too."""
    with connect() as second:
        return any(_session(connection) == _session(second) for _ in range(_TRIES))


def _session(client: Any) -> Any:
    with client.cursor() as cursor:
        cursor.execute(_SESSION)
        return cursor.fetchone()
