"""Write pending reasons, only when changed: this is the most frequent write."""

from collections.abc import Sequence

from gpusched.lib.db.sql import columns, execute


def set_reasons(rows: Sequence[tuple[int, int]], reasons: Sequence[tuple[str, str]]) -> int:
    """Set the reasons of jobs that still wait and of arrays with waiting elements. `rows`: (job, index in `reasons`);
    `reasons`: (code, evidence as JSON), which thousands of jobs may share. `reason_since` changes with the code."""
    return execute(
        """UPDATE jobs_job j SET reason = s.code, evidence = s.evidence,
                  reason_since = CASE WHEN j.reason = s.code THEN j.reason_since ELSE now() END
             FROM unnest(%s::bigint[], %s::int[]) AS r (job_id, number)
             JOIN unnest(%s::text[], %s::jsonb[]) WITH ORDINALITY AS s (code, evidence, n) ON s.n = r.number + 1
            WHERE j.id = r.job_id AND (j.state = 'pending' OR j.state = 'running' AND NOT isempty(j.array_waiting))""",
        [*columns(rows, 2), *columns(reasons, 2)],
    )
