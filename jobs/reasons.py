"""Writes why jobs wait; only when it changed, since this is the most frequent write of all."""

from collections.abc import Sequence

from gpusched.lib.sql import columns, execute


def set_reasons(rows: Sequence[tuple[int, str, str]]) -> int:
    """(job, code, evidence as JSON text) of jobs that still wait; `reason_since` moves only with the code."""
    return execute(
        """UPDATE jobs_job j SET reason = r.code, evidence = r.evidence,
                  reason_since = CASE WHEN j.reason = r.code THEN j.reason_since ELSE now() END
             FROM unnest(%s::bigint[], %s::text[], %s::jsonb[]) AS r (job_id, code, evidence)
            WHERE j.id = r.job_id AND j.state = 'pending'""",
        columns(rows, 3),
    )
