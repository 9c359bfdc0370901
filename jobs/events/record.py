"""The only writer of events of jobs. Each is written by the statement that changes the job, or in its transaction."""

from collections.abc import Sequence
from typing import Any

from gpusched.lib.db.sql import as_json, execute


def insert_sql(
    kind: str,
    source: str,
    *,
    job: str = "id",
    at: str = "clock_timestamp()",
    attempt: str = "attempt",
    actor: str = "''",
    via: str = "",
    data: str = "'{}'",
) -> str:
    """Build the INSERT of one event for each row of `source`, a FROM clause. The rest are constants in SQL as well: a
    column, a literal or a placeholder. Without `via` it is that of the transaction."""
    columns = "job_id, at, kind, attempt, actor, via, data" if via else "job_id, at, kind, attempt, actor, data"
    values = ", ".join(filter(None, (job, at, kind, attempt, actor, via, data)))
    return f"INSERT INTO jobs_jobevent ({columns}) SELECT {values} FROM {source}"


_OF_JOBS = insert_sql("%s", "jobs_job WHERE id = ANY(%s)", actor="%s", data="%s::jsonb")


def record_event(job_ids: Sequence[int], kind: str, actor: str, data: dict[str, Any]) -> None:
    """Record an event of the current attempt of each of these jobs."""
    execute(_OF_JOBS, [kind, actor, as_json(data), list(job_ids)])
