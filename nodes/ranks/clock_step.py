"""Keep the run times of ranks right after the clock of the database was set back (A53)."""

from datetime import timedelta

from gpusched.lib.db.sql import execute

_ASSIGNMENTS = """
    UPDATE nodes_assignment SET started_at = started_at - %(by)s, missing_since = missing_since - %(by)s
     WHERE state <> 'ended'
"""


def move_live_back(by: timedelta) -> None:
    """Move the times of ranks that have not ended back by as much as the clock. Call it with their jobs locked."""
    execute(_ASSIGNMENTS, {"by": by})
