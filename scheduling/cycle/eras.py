"""Determines for how long the versions of rows tell what has changed since they were read."""

import time

from gpusched.lib.db.sql import prepared_rows

# Everything is read anew this often.
_SECONDS = 300.0

# (start of the server, number of the interval).
Era = tuple[str, int]

# The first part, as an expression for statements that read something else, too.
SERVER_SQL = "pg_postmaster_start_time()::text"


def era_of(server: str) -> Era:
    """Return the present era on this server: values that were read in another one must be read again.

    A server that takes over from a lost one may give the same version to other contents."""
    return server, int(time.monotonic() // _SECONDS)


def current_era() -> Era:
    """Return the present era on the server of this thread's connection."""
    [(server,)] = prepared_rows(f"SELECT {SERVER_SQL}")
    return era_of(server)
