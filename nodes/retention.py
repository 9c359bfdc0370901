"""Delete what nodes keep of jobs and attempts that are deleted (jobs/retention.py), but for the usage ledger."""

from collections.abc import Sequence

from gpusched.lib.db.sql import execute


def delete_assignments(attempt_ids: Sequence[int]) -> None:
    """Delete the ranks of ended attempts: where each ran and how it ended."""
    execute("DELETE FROM nodes_assignment WHERE attempt_id = ANY(%s::bigint[])", [list(attempt_ids)])


def delete_idle_records(job_ids: Sequence[int]) -> None:
    """Delete the warnings about idle GPUs that jobs had, and the exemptions from them."""
    for table in ("nodes_heldidle", "nodes_idleexemption"):
        execute(f"DELETE FROM {table} WHERE job_id = ANY(%s::bigint[])", [list(job_ids)])
