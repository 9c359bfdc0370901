"""Restart periods that begin in the future: they were recorded before the clock of the database was set back."""

from gpusched.lib.db.sql import execute, retry_atomic

_STEP = "clock_timestamp() + interval '1 minute'"
_INCIDENTS = f"UPDATE nodes_incident SET since = clock_timestamp() WHERE until IS NULL AND since > {_STEP}"
_MISSING_USERS = f"DELETE FROM nodes_missinguser WHERE since > {_STEP}"


def begin_anew() -> int:
    """Restart open incidents: cordons of the server that end by themselves, dirty, hot and lost devices. Forget that
    nodes lacked a Unix user, so that they are tried again. Return how many rows changed."""
    return retry_atomic(lambda: execute(_INCIDENTS) + execute(_MISSING_USERS))
