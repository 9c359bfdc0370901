"""Finished jobs, and the details of their history, are deleted some days after their end; totals stay exact."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
from django.db import connection, transaction

from gpusched.env import SettingError, read, retention_days
from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute, query, rows
from gpusched.protocol.arrays import ArrayRequest
from jobs import retention
from jobs.actions import job_actions
from jobs.listing import representation, tally
from jobs.listing.counts import by_state
from jobs.logs import store
from scheduling.cycle import run
from scheduling.worker import tasks
from tests.factories import identity_for, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
TABLES = ("jobs_job", "jobs_attempt", "jobs_jobevent", "jobs_jobreason", "jobs_dependency", "nodes_assignment")


@pytest.fixture(autouse=True)
def data_dir(settings, tmp_path):
    settings.DATA_DIR = tmp_path


def set_retention(settings, jobs="", details=""):
    settings.ENV = replace(settings.ENV, job_retention_days=jobs, job_detail_retention_days=details)


def finish(node, exit_code=0):
    run_cycle()
    node.end(*node.start_all(), exit_code=exit_code)


def age(days, *job_ids):
    execute(
        "UPDATE jobs_job SET ended_at = ended_at - make_interval(days => %s) WHERE id = ANY(%s::bigint[])",
        [days, list(job_ids)],
    )


@contextmanager
def locked_elsewhere(job):
    """Lock a job's row in a transaction of another connection."""
    is_locked, is_over = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            execute("SELECT 1 FROM jobs_job WHERE id = %s FOR NO KEY UPDATE", [job])
            is_locked.set()
            is_over.wait(30)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert is_locked.wait(10)
        yield
    finally:
        is_over.set()
        thread.join()


def ids():
    return [row[0] for row in rows("SELECT id FROM jobs_job ORDER BY id")]


def counts(*tables):
    return {table: rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables or TABLES}


def shown_array(job_id):
    return representation.select("j.id = %s", [job_id])[0]["array"]


def totals():
    ledger = query("SELECT * FROM tenants_usageentry ORDER BY id")
    return by_state(), tally.attempts_by_reason(), ledger


def test_nothing_is_deleted_by_default(user, tenant, node):
    job = submit(user, tenant, gpu_count=1)
    finish(node)
    age(10_000, job)
    assert tasks.drop_old_jobs() == 0
    assert ids() == [job]


def test_job_is_deleted_with_all_that_belongs_to_it_and_totals_stay(settings, user, tenant, node):
    recent = submit(user, tenant, gpu_count=1)
    finish(node)
    old = submit(user, tenant, gpu_count=2, max_retries=1)
    finish(node, exit_code=1)
    execute("UPDATE jobs_job SET eligible_at = NULL")
    finish(node)
    for attempt in (1, 2):
        store.append(old, attempt, 0, 0, b"hello")
    totals_before, counts_before = totals(), counts()
    age(31, old)
    set_retention(settings, jobs="30")
    assert tasks.drop_old_jobs() == 1
    assert ids() == [recent]
    assert totals() == totals_before
    of_kept = query("SELECT count(*) AS n FROM jobs_jobevent WHERE job_id = %s", [recent])[0]["n"]
    assert counts()["jobs_jobevent"] == of_kept < counts_before["jobs_jobevent"]
    assert [store.size_of(old, attempt, 0) for attempt in (1, 2)] == [0, 0]
    assert counts("jobs_attempt", "nodes_assignment") == {"jobs_attempt": 1, "nodes_assignment": 1}


def test_days_can_differ_by_state(settings, user, tenant, node):
    completed = submit(user, tenant)
    finish(node)
    failed = submit(user, tenant)
    finish(node, exit_code=1)
    age(20, completed, failed)
    set_retention(settings, jobs="completed=10,failed=30")
    assert tasks.drop_old_jobs() == 1
    assert ids() == [failed]


def test_details_are_deleted_and_the_latest_attempt_stays(settings, user, tenant, node):
    job = submit(user, tenant, gpu_count=1, max_retries=1)
    finish(node, exit_code=1)
    execute("UPDATE jobs_job SET eligible_at = NULL")
    finish(node)
    totals_before = totals()
    age(31, job)
    set_retention(settings, details="30")
    assert tasks.drop_old_jobs() == 1
    assert counts() == {
        "jobs_job": 1, "jobs_attempt": 1, "jobs_jobevent": 0, "jobs_jobreason": 0, "jobs_dependency": 0,
        "nodes_assignment": 1,
    }  # fmt: skip
    assert rows("SELECT number FROM jobs_attempt") == [(2,)]
    assert totals() == totals_before
    assert tasks.drop_old_jobs() == 0, "processed jobs are not examined again"


def test_array_is_deleted_with_its_elements_and_totals_stay(settings, user, tenant, node, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)
    array = submit(user, tenant, gpu_count=1, array=ArrayRequest(count=5))
    finish(node)
    part = submit(user, tenant, gpu_count=1, array=ArrayRequest(count=3, max_parallel=1))
    run_cycle()
    keys = node.start_all()
    job_actions.cancel(part, identity_for(user))
    node.end(*keys, reason="cancelled", exit_code=None, signal=15)
    run_cycle()
    totals_before = totals()
    execute("UPDATE jobs_job SET ended_at = ended_at - interval '31 days'")
    set_retention(settings, jobs="30")
    assert tasks.drop_old_jobs() == 2
    assert ids() == []
    assert totals() == totals_before
    tally.fold_counters()
    assert totals() == totals_before
    assert array != part


def test_elements_of_an_array_that_runs_again_are_kept(settings, user, tenant, node):
    """The array is retried between its selection by retention and the deletion of its elements."""
    array = submit(user, tenant, gpu_count=1, array=ArrayRequest(count=2))
    run_cycle()
    first, second = node.start_all()
    node.end(first, exit_code=1)
    node.end(second)
    run_cycle()
    execute("UPDATE jobs_job SET ended_at = ended_at - interval '31 days'")
    elements = ids()
    assert "1 element" in job_actions.retry(array, identity_for(user))
    rule = retention._Rule(retention.JOBS, "failed", 30)
    delete = partial(retention._delete_jobs, store.Deletion())
    assert retention._delete_elements(rule, [array], delete, tasks._delete_related, float("inf"))
    assert ids() == elements


def test_array_whose_deletion_has_begun_keeps_its_counts_and_is_not_retried(settings, user, tenant, node, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 2)
    array = submit(user, tenant, gpu_count=1, array=ArrayRequest(count=5))
    run_cycle()
    first, *others = node.start_all()
    node.end(first, exit_code=1)
    node.end(*others)
    run_cycle()
    totals_before, array_before = totals(), shown_array(array)
    assert array_before["by_state"] == {"completed": 4, "failed": 1}
    execute("UPDATE jobs_job SET ended_at = ended_at - interval '31 days'")
    rule = retention._Rule(retention.JOBS, "failed", 30)
    delete = partial(retention._delete_jobs, store.Deletion())
    assert retention._delete_elements(rule, [array], delete, tasks._delete_related, 0.0) is None
    assert len(ids()) == 1 + 3
    assert (totals(), shown_array(array)) == (totals_before, array_before)
    with pytest.raises(Problem, match="are already deleted") as caught:
        job_actions.retry(array, identity_for(user), "2-4")
    assert caught.value.code == "wrong_state"
    set_retention(settings, jobs="30")
    assert tasks.drop_old_jobs() == 1
    assert (ids(), totals()) == ([], totals_before)


def test_job_that_a_waiting_job_depends_on_is_kept_and_deleted_later(settings, user, tenant, node):
    first = submit(user, tenant)
    second = submit(user, tenant)
    finish(node)
    waiting = submit(user, tenant, gpu_count=0)
    execute("INSERT INTO jobs_dependency (job_id, on_id, kind) VALUES (%s, %s, 'after_ok')", [waiting, first])
    age(31, first, second)
    set_retention(settings, jobs="30")
    assert tasks.drop_old_jobs() == 1
    assert ids() == [first, waiting]
    execute("DELETE FROM jobs_dependency")
    assert tasks.drop_old_jobs() == 1
    assert ids() == [waiting]


def test_rows_of_every_table_that_refers_to_a_job_are_deleted_with_it(settings, user, tenant, node):
    """The job has an exemption from the rule about idle GPUs, a warning, and a forecast of its start."""
    job = submit(user, tenant, gpu_count=1)
    finish(node)
    execute("INSERT INTO nodes_idleexemption (job_id, note, created_by) VALUES (%s, '', 'root')", [job])
    execute(
        "INSERT INTO nodes_heldidle (job_id, attempt, since, policy, stage, told_at)"
        " VALUES (%s, 1, now(), 'warn', 1, now())",
        [job],
    )
    execute(
        "INSERT INTO scheduling_forecast (job_id, made_at, p50_seconds, p90_seconds, p50_ratio, p90_ratio)"
        " VALUES (%s, now(), 1, 1, 1, 1)",
        [job],
    )
    age(31, job)
    set_retention(settings, jobs="30")
    assert tasks.drop_old_jobs() == 1
    assert ids() == []


def test_no_other_table_refers_to_what_retention_deletes():
    """A new foreign key to one of these tables would make each batch fail: delete its rows, too, and name it here."""
    references = rows(
        "SELECT DISTINCT conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint"
        " WHERE contype = 'f' AND confrelid = ANY(%s::regclass[]) ORDER BY 1, 2",
        [["jobs_job", "jobs_attempt", "jobs_jobevent", "jobs_jobreason", "nodes_assignment"]],
    )
    assert references == [
        ("jobs_attempt", "jobs_job"),
        ("jobs_dependency", "jobs_job"),
        ("jobs_idempotencykey", "jobs_job"),
        ("jobs_job", "jobs_job"),
        ("nodes_allocation", "nodes_assignment"),
        ("nodes_assignment", "jobs_attempt"),
        ("nodes_heldidle", "jobs_job"),
        ("nodes_idleexemption", "jobs_job"),
        ("scheduling_claim", "jobs_job"),
        ("scheduling_forecast", "jobs_job"),
    ]


def test_job_that_runs_again_is_kept(settings, user, tenant, node):
    job = submit(user, tenant)
    finish(node, exit_code=1)
    age(31, job)
    job_actions.retry(job, identity_for(user))
    set_retention(settings, jobs="30", details="30")
    assert tasks.drop_old_jobs() == 0
    assert ids() == [job]


def test_deletion_waits_for_no_lock_and_nothing_waits_for_it(settings, user, tenant, node):
    """Retention skips a job that another transaction has locked; cycles and submits continue during a batch."""
    locked, other = submit(user, tenant), submit(user, tenant)
    finish(node)
    age(31, locked, other)
    set_retention(settings, jobs="30")
    with locked_elsewhere(locked):
        assert tasks.drop_old_jobs() == 1
        assert ids() == [locked]
    new = []

    def meanwhile(job_ids, attempt_ids):
        """Submit and run a cycle inside the transaction of a batch."""

        def work():
            execute("SET lock_timeout = '5s'")
            new.append(submit(user, tenant, gpu_count=1))
            run.run("test")
            connection.close()

        aside = threading.Thread(target=work)
        aside.start()
        aside.join(20)
        tasks._delete_related(job_ids, attempt_ids)

    assert retention.run(meanwhile) == 1
    assert len(new) == 1
    assert rows("SELECT state FROM jobs_job") == [("scheduled",)]


def test_run_stops_at_its_time_limit_and_goes_on_later(settings, user, tenant, node, monkeypatch):
    monkeypatch.setattr(retention, "BATCH", 1)
    jobs = [submit(user, tenant) for _ in range(3)]
    finish(node)
    age(31, *jobs)
    set_retention(settings, jobs="30")
    assert retention.run(tasks._delete_related, seconds=0) == 0
    assert retention.run(tasks._delete_related) == 3


def test_deleted_jobs_are_announced(settings, user, tenant, node, monkeypatch):
    """A52: open pages reload the list."""
    job = submit(user, tenant)
    finish(node)
    age(31, job)
    set_retention(settings, jobs="30")
    published = []
    monkeypatch.setattr("gpusched.lib.bus.events.notifier.notify", lambda topic, ids: published.append((topic, ids)))
    tasks.drop_old_jobs()
    assert ("jobs", [job]) in published


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "'soon' is not a number of days"),
        ("0.5", "0.5 is not from 1 to 36500 days"),
        ("running=3", "'running' must be one of cancelled, completed, failed, preempted"),
        ("failed=1,failed=2", "each of them once"),
        ("failed=", "'' is not a number of days"),
    ],
)
def test_setting_that_cannot_be_understood_is_refused(text, message):
    with pytest.raises(SettingError, match=message) as refused:
        read({"GPUSCHED_JOB_RETENTION_DAYS": text})
    assert "GPUSCHED_JOB_RETENTION_DAYS" in str(refused.value)


def test_one_number_holds_for_every_final_state():
    assert retention_days("90") == {"cancelled": 90, "completed": 90, "failed": 90, "preempted": 90}
    assert retention_days(" completed=1 , failed=2.5 ") == {"completed": 1, "failed": 2.5}
