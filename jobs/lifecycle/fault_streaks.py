"""How many attempts of a job in a row, up to its latest, ended by faults of nodes: read from its attempts."""

from collections.abc import Sequence

from gpusched.lib.db.sql import query
from gpusched.protocol.reasons import NODE_FAULTS, EndReason
from jobs.lifecycle.attempt_end import AttemptOutcome, FaultStreak

# Attempts are numbered without a gap, so the last one that ended otherwise says how many came after it. Each `max`
# reads the index of (job, number) backwards and stops there.
_STREAKS = """
    SELECT t.job_id,
           t.number - 1 - coalesce((SELECT max(a.number) FROM jobs_attempt a WHERE a.job_id = t.job_id
                                       AND a.number < t.number AND a.reason <> ALL(%(faults)s)), 0) AS faults,
           t.number - 1 - coalesce((SELECT max(a.number) FROM jobs_attempt a WHERE a.job_id = t.job_id
                                       AND a.number < t.number AND a.reason <> %(lost)s), 0) AS supervisors_lost,
           t.number - 1 - coalesce((SELECT max(a.number) FROM jobs_attempt a WHERE a.job_id = t.job_id
                                       AND a.number < t.number AND a.reason <> %(no_user)s), 0) AS without_user
      FROM unnest(%(jobs)s::bigint[], %(numbers)s::int[]) AS t (job_id, number)
"""


def fault_streaks(outcomes: Sequence[AttemptOutcome]) -> dict[int, FaultStreak]:
    """{job_id: streak} before the outcomes that are faults of nodes; nothing is asked of the others."""
    faulty = [o for o in outcomes if o.reason in NODE_FAULTS and o.attempt > 1]
    if not faulty:
        return {}
    asked = {
        "jobs": [o.job_id for o in faulty],
        "numbers": [o.attempt for o in faulty],
        "faults": sorted(NODE_FAULTS),
        "lost": EndReason.SUPERVISOR_LOST,
        "no_user": EndReason.NO_ACCOUNT,
    }
    return {row.pop("job_id"): FaultStreak(**row) for row in query(_STREAKS, asked)}
