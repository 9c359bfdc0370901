"""The SQL conditions of a waiting job, and the number of jobs by state, in which each element of an array counts."""

from gpusched.lib.db.sql import query
from jobs.listing.tally import FINAL_STATES

# Rows of jobs_job as j: jobs that wait, and arrays of which some elements do.
WAITS = """(j.state IN ('pending', 'held')
    OR j.array_count IS NOT NULL AND j.state = 'running' AND NOT isempty(j.array_waiting))"""
# The number of jobs that such a row stands for.
WEIGHT = "coalesce(jobs_numbers(j.array_waiting), 1)"

# Worded as the index of unfinished jobs. Triggers have counted the finished ones (jobs/listing/tally.py).
_BY_STATE = f"""
    SELECT state, sum(n)::bigint AS n FROM (
        SELECT state, count(*) AS n FROM jobs_job WHERE NOT (state IN ({FINAL_STATES})) GROUP BY state
         UNION ALL
        SELECT word, n FROM jobs_tally WHERE kind = 'job'
         UNION ALL
        SELECT part.state, part.n FROM jobs_job a,
               LATERAL (VALUES (a.state, -1),
                               (CASE a.state WHEN 'held' THEN 'held' ELSE 'pending' END, jobs_numbers(a.array_waiting)),
                               ('cancelled', jobs_numbers(a.array_cancelled))) AS part (state, n)
         WHERE a.array_count IS NOT NULL) counted
     GROUP BY state HAVING sum(n) <> 0
"""


def by_state() -> dict[str, int]:
    """Return {state: jobs}. An array counts for its elements, not for itself."""
    return {row["state"]: row["n"] for row in query(_BY_STATE)}
