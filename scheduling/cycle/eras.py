"""Determines for how long the versions of rows tell what has changed since they were read."""

import time

from gpusched.lib.db.sql import prepared_rows

# Everything is read anew this often.
_SECONDS = 300.0

# (start of the server, number of the interval).
Era = tuple[str, int]


def current_era() -> Era:
    """Return the present era: values that were read in another one must be read again.

    A server that takes over from a lost one may give the same version to other contents."""
    [(server,)] = prepared_rows("SELECT pg_postmaster_start_time()::text")
    return server, int(time.monotonic() // _SECONDS)
