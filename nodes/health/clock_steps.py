"""Let what counts from a time to come count from now: it was recorded before the clock of the database was set back."""

from gpusched.lib.db.sql import execute, retry_atomic

_STEP = "clock_timestamp() + interval '1 minute'"
_INCIDENTS = f"UPDATE nodes_incident SET since = clock_timestamp() WHERE until IS NULL AND since > {_STEP}"
_MISSING_USERS = f"DELETE FROM nodes_missinguser WHERE since > {_STEP}"


def begin_anew() -> int:
    """Begin open incidents anew: cordons of the server that end by themselves, dirty, hot and lost devices. Try nodes
    again that lacked a Unix user. Return how many."""
    return retry_atomic(lambda: execute(_INCIDENTS) + execute(_MISSING_USERS))
