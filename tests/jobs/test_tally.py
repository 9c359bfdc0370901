"""Totals of ended jobs and attempts equal a count of all rows."""

import threading

import pytest
from django.db import connection, transaction

from gpusched.lib.db.sql import execute, query
from jobs.actions import job_actions
from jobs.listing import counts, tally
from jobs.models import Tally
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def require_exact() -> None:
    """Compare the totals with a count of every row."""
    jobs = query("SELECT state, count(*) AS n FROM jobs_job WHERE array_count IS NULL GROUP BY state ORDER BY state")
    assert sorted(counts.by_state().items()) == [(row["state"], row["n"]) for row in jobs]
    attempts = query("SELECT reason, count(*) AS n FROM jobs_attempt WHERE ended_at IS NOT NULL GROUP BY reason")
    assert tally.attempts_by_reason() == {row["reason"]: row["n"] for row in attempts}


def test_totals_include_jobs_and_attempts_as_they_end(user, tenant):
    agent = make_node(gpus=4)
    ids = [submit(user, tenant, max_retries=1) for _ in range(6)]
    require_exact()
    run_cycle()
    keys = agent.start_all()
    agent.end(*keys[:2])
    agent.end(keys[2], exit_code=1)  # runs again
    agent.end(keys[3], exit_code=None, reason="node_fault")
    job_actions.cancel(ids[-1], identity_for(user))
    require_exact()
    assert counts.by_state()["completed"] == 2
    run_cycle()
    for key in agent.start_all():
        agent.end(key, exit_code=3)
    require_exact()
    assert tally.attempts_by_reason()["node_fault"] == 1
    tally.fold_counters()
    require_exact()
    assert Tally.objects.count() <= 6


def test_totals_follow_rows_that_are_deleted_or_inserted_finished(user, tenant):
    agent = make_node()
    submit(user, tenant)
    run_cycle()
    agent.end(*agent.start_all())
    execute(
        "INSERT INTO jobs_attempt (job_id, number, ranks, scheduled_at, ended_at, reason, evidence, placement, outcomes)"
        " SELECT id, 7, 1, now(), now(), 'exited', '{}', '[]', '{}' FROM jobs_job"
    )
    require_exact()
    assert tally.attempts_by_reason() == {"exited": 2}
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = DEFAULT")
        execute("DELETE FROM jobs_attempt WHERE number = 7")
    require_exact()
    # The product never moves a completed job back.
    execute("UPDATE jobs_job SET state = 'pending', ended_at = NULL")
    require_exact()


def test_fold_loses_nothing_while_jobs_end():
    """Two threads fold while a third appends."""
    with transaction.atomic():
        for _ in range(200):
            execute("INSERT INTO jobs_tally (kind, word, n) VALUES ('attempt', 'exited', 1)")

    def work(sql: str) -> None:
        try:
            for _ in range(20):
                execute(sql) if sql else tally.fold_counters()
        finally:
            connection.close()

    more = "INSERT INTO jobs_tally (kind, word, n) VALUES ('attempt', 'exited', 1)"
    threads = [threading.Thread(target=work, args=(sql,)) for sql in ("", "", more)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.attempts_by_reason() == {"exited": 220}


def test_statement_triggers_do_not_join_old_rows_to_new_ones():
    """A session keeps the plan of its first statement: made for one row, a join would compare each of ten thousand rows
    with each, for a minute."""
    triggers = query(
        "SELECT tgname, prosrc FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
        " WHERE tgoldtable IS NOT NULL AND tgnewtable IS NOT NULL"
    )
    assert len(triggers) == 3
    assert [row["tgname"] for row in triggers if "join" in row["prosrc"].lower()] == []
