"""When an attempt last saved its work: what is believed of it, and what preemption makes of it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from gpusched.lib.db.sql import query
from jobs.api.attempts import represent_attempt
from jobs.models import Attempt, Job
from scheduling.cycle import snapshot
from scheduling.engine.model import Policy
from tests.factories import make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def running(user, tenant):
    """(node, key) of a job that has run for an hour."""
    node = make_node()
    submit(user, tenant)
    run_cycle()
    [key] = node.start_all()
    Attempt.objects.update(scheduled_at=timezone.now() - timedelta(hours=2))
    Attempt.objects.update(started_at=timezone.now() - timedelta(hours=1))
    return node, key


def saved():
    return Attempt.objects.get().saved_at


def ago(**fields):
    return timezone.now() - timedelta(**fields)


def test_latest_checkpoint_is_stored_shown_and_passed_to_the_engine(running):
    node, key = running
    first, second = ago(minutes=20), ago(minutes=10)
    for at in (first, second, first):
        node.sync(saved={key: at.isoformat()})
    assert saved() == second
    [row] = query("SELECT * FROM jobs_attempt")
    assert represent_attempt(row)["saved_at"].startswith(second.strftime("%Y-%m-%dT%H:%M:%S"))
    [one] = snapshot.load(is_whole=True)[0].running
    assert one.saved_at == pytest.approx(second.timestamp())


def test_impossible_checkpoints_are_ignored(running):
    node, key = running
    for saved_at in ({key: ago(hours=3).isoformat()}, {"7.7.7": ago(minutes=1).isoformat()}, {"x": "y"}):
        node.sync(saved=saved_at)
    make_node().sync(saved={key: ago(minutes=1).isoformat()})
    assert saved() is None
    node.sync(saved={key: ago(minutes=-60).isoformat()})
    assert abs((saved() - timezone.now()).total_seconds()) < 60, "a time in the future is now"


def test_checkpoint_in_the_message_of_the_end_is_stored(running):
    """A job that is stopped often saves in its grace period and ends at once."""
    node, key = running
    last = ago(seconds=1)
    node.end(key, exit_code=0, saved={key: last.isoformat()})
    assert saved() == last


def test_ended_attempt_keeps_its_checkpoint(running):
    node, key = running
    node.end(key, exit_code=3)
    node.sync(saved={key: ago(minutes=1).isoformat()})
    assert saved() is None


def test_preemption_prefers_the_job_with_the_latest_checkpoint_over_the_younger_one(user, tenant, monkeypatch):
    """Without checkpoints the younger one loses less."""
    monkeypatch.setattr(snapshot, "policy", lambda: Policy(min_runtime_seconds=0, preemption_delay_seconds=0))
    node = make_node(gpus=2)
    old, young = submit(user, tenant, priority=100), submit(user, tenant, priority=100)
    run_cycle()
    keys = {int(key.split(".")[0]): key for key in node.start_all()}
    for job_id, hours in ((old, 2), (young, 1)):
        Attempt.objects.filter(job_id=job_id).update(scheduled_at=ago(hours=3), started_at=ago(hours=hours))
        Job.objects.filter(pk=job_id).update(started_at=ago(hours=hours))
    node.sync(saved={keys[old]: ago(minutes=1).isoformat()})
    submit(user, tenant, priority=1500)
    run_cycle()
    assert {job.pk: job.state for job in Job.objects.filter(pk__in=keys)} == {old: "stopping", young: "running"}
