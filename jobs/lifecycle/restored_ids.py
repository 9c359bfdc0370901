"""The ids of jobs after a restore of the database."""

import psycopg

# Agents remember for a week which ranks ran, and start none of them twice: a new job must not get such an id.
SKIPPED_IDS = 1_000_000


def before_restore(database_url: str) -> str:
    """Return `skip_ids` for the database that will be replaced, which may have later ids: a restored backup may be
    restored again, or an earlier one."""
    with psycopg.connect(database_url) as connection:
        [name] = connection.execute("SELECT to_regclass('jobs_job_id_seq')").fetchone() or [None]
        [last] = (name and connection.execute("SELECT last_value FROM jobs_job_id_seq").fetchone()) or [0]
    return skip_ids(int(last))


def skip_ids(last: int = 0) -> str:
    """Return the statements that leave a gap before the ids of later jobs, which also begin beyond `last`. The result
    of the last one is the number of jobs."""
    return (
        f"SELECT setval('jobs_job_id_seq', greatest(nextval('jobs_job_id_seq'), {last}) + {SKIPPED_IDS});"
        " SELECT count(*) FROM jobs_job;"
    )
