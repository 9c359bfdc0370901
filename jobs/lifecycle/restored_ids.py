"""The ids of jobs after a restore of the database."""

from collections.abc import Callable
from functools import partial

import psycopg

# Agents remember for a week which ranks ran, and start none of them twice: a new job must not get such an id.
SKIPPED_IDS = 1_000_000


def before_restore(database_url: str) -> Callable[[], int]:
    """Note the latest id of the database that will be replaced, if it has any: a restored backup may be restored again,
    or an earlier one. Return `skip_ids`, to be called after the restore."""
    with psycopg.connect(database_url) as connection:
        [name] = connection.execute("SELECT to_regclass('jobs_job_id_seq')").fetchone() or [None]
        [last] = (name and connection.execute("SELECT last_value FROM jobs_job_id_seq").fetchone()) or [0]
    return partial(skip_ids, database_url, int(last))


def skip_ids(database_url: str, last: int = 0) -> int:
    """Leave a gap before the ids of later jobs, which also begin beyond `last`. Return the number of jobs."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "SELECT setval('jobs_job_id_seq', greatest(nextval('jobs_job_id_seq'), %s) + %s)", [last, SKIPPED_IDS]
        )
        row = connection.execute("SELECT count(*) FROM jobs_job").fetchone()
    assert row is not None
    return int(row[0])
