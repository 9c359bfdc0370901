"""Delete what nodes keep of attempts that are deleted (jobs/retention.py). The usage ledger is not part of it."""

from collections.abc import Sequence

from gpusched.lib.sql import execute


def delete_assignments(attempt_ids: Sequence[int]) -> None:
    """Delete the ranks of ended attempts: where each ran and how it ended."""
    execute("DELETE FROM nodes_assignment WHERE attempt_id = ANY(%s::bigint[])", [list(attempt_ids)])
