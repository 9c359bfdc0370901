"""Delete rows of this app that belong to deleted jobs and attempts (jobs/retention.py)."""

from collections.abc import Sequence

from gpusched.lib.db.sql import execute


def delete_assignments(attempt_ids: Sequence[int]) -> None:
    """Delete the ranks of ended attempts."""
    execute("DELETE FROM nodes_assignment WHERE attempt_id = ANY(%s::bigint[])", [list(attempt_ids)])


def delete_idle_records(job_ids: Sequence[int]) -> None:
    """Delete the idle warnings and exemptions of jobs."""
    for table in ("nodes_heldidle", "nodes_idleexemption"):
        execute(f"DELETE FROM {table} WHERE job_id = ANY(%s::bigint[])", [list(job_ids)])
