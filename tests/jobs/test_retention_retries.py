"""A job that is retried before retention locks it keeps its logs and history; afterwards it cannot be retried."""

import threading

import pytest
from django.db import OperationalError, connection

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute
from jobs import retention
from jobs.actions import job_actions
from jobs.logs import store
from jobs.models import Job
from scheduling.worker import tasks
from tests.factories import identity_for, make_node, submit
from tests.jobs.test_retention import age, counts, finish, locked_elsewhere, set_retention

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def data_dir(settings, tmp_path):
    settings.DATA_DIR = tmp_path


@pytest.fixture
def job(user, tenant):
    node = make_node(gpus=8)
    job = submit(user, tenant, gpu_count=1, max_retries=1)
    finish(node, exit_code=1)
    execute("UPDATE jobs_job SET eligible_at = NULL")
    finish(node, exit_code=1)
    for attempt in (1, 2):
        store.append(job, attempt, 0, 0, b"hello")
    age(31, job)
    return job


@pytest.mark.parametrize("rule", ["jobs", "details"])
def test_retry_before_the_batch_keeps_the_logs(settings, user, job, monkeypatch, rule):
    set_retention(settings, **{rule: "30"})
    choose = retention._next

    def retry_after(*arguments):
        batch = choose(*arguments)
        if batch:
            job_actions.retry(job, identity_for(user))
        return batch

    monkeypatch.setattr(retention, "_next", retry_after)
    attempts = counts("jobs_attempt")
    assert tasks.drop_old_jobs() == 0
    assert [store.size_of(job, attempt, 0) for attempt in (1, 2)] == [5, 5]
    assert counts("jobs_attempt") == attempts


@pytest.mark.parametrize("rule", ["jobs", "details"])
def test_retry_waits_for_a_batch_that_has_begun(settings, user, job, rule):
    set_retention(settings, **{rule: "30"})
    outcome = []

    def retry():
        execute("SET lock_timeout = '200ms'")
        try:
            outcome.append(job_actions.retry(job, identity_for(user)))
        except OperationalError as error:
            outcome.append(type(error.__cause__).__name__)
        connection.close()

    def meanwhile(job_ids, attempt_ids):
        aside = threading.Thread(target=retry)
        aside.start()
        aside.join(20)
        tasks._delete_related(job_ids, attempt_ids)

    assert retention.run(meanwhile) == 1
    assert outcome == ["LockNotAvailable"]


def test_details_of_a_locked_job_are_deleted_in_a_later_run(settings, job):
    set_retention(settings, details="30")
    with locked_elsewhere(job):
        assert tasks.drop_old_jobs() == 0
    assert tasks.drop_old_jobs() == 1
    assert counts("jobs_attempt") == {"jobs_attempt": 1}


@pytest.mark.parametrize(("kind", "is_retried"), [("after_ok", False), ("after_fail", False), ("after_any", True)])
def test_retry_of_a_job_whose_dependency_was_deleted(settings, user, tenant, kind, is_retried):
    """Only how it ended is unknown. The job itself exists: no 404."""
    node = make_node(gpus=8)
    first = submit(user, tenant, gpu_count=1)
    dependent = submit(user, tenant, gpu_count=1, depends_on=[f"{kind}:{first}"])
    job_actions.cancel(dependent, identity_for(user))
    finish(node, exit_code=0)
    age(31, first)
    set_retention(settings, jobs="30")
    assert tasks.drop_old_jobs() == 1
    if is_retried:
        job_actions.retry(dependent, identity_for(user))
        assert Job.objects.get().open_dependencies == 0
    else:
        with pytest.raises(Problem, match=f"job {first}, on which it depends, was deleted") as refused:
            job_actions.retry(dependent, identity_for(user))
        assert refused.value.status == 422
