"""The ids of jobs after a restore of the database."""

import psycopg

# Agents remember for a week which ranks ran, and start none of them twice: a new job must not get such an id.
SKIPPED_IDS = 1_000_000


def skip_ids(database_url: str) -> int:
    """Leave a gap before the ids of later jobs. Return the number of jobs."""
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT setval('jobs_job_id_seq', nextval('jobs_job_id_seq') + %s)", [SKIPPED_IDS])
        row = connection.execute("SELECT count(*) FROM jobs_job").fetchone()
    assert row is not None
    return int(row[0])
