"""Determine why a replica ended while it worked on a batch."""

from gpusched.lib.db.sql import rows
from gpusched.protocol.reasons import EndReason

_OWN = (EndReason.EXITED, EndReason.SIGNALLED)
# The job still counts as running until its agent has reported the end.
_WAS_ENDED = """
    SELECT EXISTS (SELECT 1 FROM jobs_all j LEFT JOIN LATERAL (
                          SELECT reason FROM jobs_attempts WHERE job_id = j.id ORDER BY number DESC LIMIT 1) a ON true
                    WHERE j.id = %s AND (j.state = 'stopping' OR a.reason <> '' AND a.reason <> ALL(%s)))
"""


def ended_itself(job_id: int) -> bool:
    """Return whether the program of a replica that is gone ended by itself, and not because its job was stopped."""
    return not rows(_WAS_ENDED, [job_id, list(_OWN)])[0][0]
