"""A log that a damaged disk does not delete: retention continues with all others, and reports it."""

from pathlib import Path

import pytest
from django.core.files.storage import storages

from gpusched.lib.db.sql import execute, query
from jobs.logs import store
from jobs.models import Attempt, Job
from scheduling.worker import tasks
from tests.factories import make_node, submit
from tests.jobs.test_retention import age, finish, set_retention
from tests.races.elsewhere import Elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def jobs(settings, tmp_path, user, tenant):
    """Three old jobs, of which the first has a log that cannot be deleted."""
    settings.DATA_DIR = tmp_path
    node, ids = make_node(gpus=8), []
    for _ in range(3):
        ids.append(submit(user, tenant, gpu_count=1))
        finish(node, exit_code=0)
        store.append(ids[-1], 1, 0, 0, b"hello")
    age(31, *ids)
    execute("UPDATE jobs_attempt SET ended_at = ended_at - interval '31 days'")
    log = Path(storages["logs"].path(store._name(ids[0], 1, 0)))
    log.unlink()
    (log / "in the way").mkdir(parents=True)
    return ids


def test_old_logs_after_it_are_deleted(jobs):
    for _ in range(2):
        with pytest.raises(OSError):
            store.drop_old(30)
        assert [row.job_id for row in Attempt.objects.filter(log_dropped_at=None)] == jobs[:1]
    assert [store.size_of(job, 1, 0) for job in jobs[1:]] == [0, 0]


@pytest.mark.parametrize("rule", ["jobs", "details"])
def test_old_jobs_after_it_are_deleted(jobs, settings, rule):
    execute("UPDATE jobs_job SET attempt = 2" if rule == "details" else "SELECT 1")  # its log is of an earlier attempt
    set_retention(settings, **{rule: "30"})
    for _ in range(2):
        with pytest.raises(OSError):
            tasks.drop_old_jobs()
        remaining = Attempt.objects if rule == "details" else Job.objects
        assert remaining.count() == 1
    assert Attempt.objects.get().job_id == jobs[0]


def test_storage_that_deletes_nothing_is_given_up(jobs, monkeypatch):
    """Each try may take a minute."""
    tried = []

    def drop(*log):
        tried.append(log)
        raise TimeoutError

    monkeypatch.setattr(store, "drop", drop)
    monkeypatch.setattr(store, "MAX_FAILURES", 2)
    with pytest.raises(TimeoutError):
        store.drop_old(30)
    assert len(tried) == 2


@pytest.mark.parametrize("rule", ["jobs", "details"])
def test_storage_that_hangs_keeps_no_job_locked(jobs, settings, monkeypatch, rule):
    """A submit that depends on an old job, and a retry of it, waited for the storage, for minutes."""
    execute("UPDATE jobs_job SET attempt = 2" if rule == "details" else "SELECT 1")
    set_retention(settings, **{rule: "30"})
    dropped = []

    def drop(job_id, *_):
        Elsewhere(lambda: query("SELECT 1 FROM jobs_job WHERE id = %s FOR UPDATE NOWAIT", [job_id])).commit()
        dropped.append(job_id)

    monkeypatch.setattr(store, "drop", drop)
    assert tasks.drop_old_jobs() == 3
    assert dropped == jobs
