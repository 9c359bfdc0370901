"""Run orders that a node does not carry out: the node is at fault, and the job runs elsewhere."""

from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from gpusched.protocol.agent_messages import Stop
from jobs.actions import job_actions
from jobs.models import Attempt, Job
from nodes.models import Allocation, ListenerLease
from nodes.ranks import recovery
from tests.factories import identity_for, make_node, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def node():
    return make_node(gpus=1)


@pytest.fixture
def job_id(node, user, tenant):
    job_id = submit(user, tenant)
    run_cycle()
    return job_id


def pass_seconds(seconds):
    Attempt.objects.update(scheduled_at=F("scheduled_at") - timedelta(seconds=seconds))
    Job.objects.update(reason_since=F("reason_since") - timedelta(seconds=seconds))
    return recovery.end_unstarted()


def state(job_id):
    return Job.objects.get(pk=job_id).state


def test_job_not_started_in_time_is_stopped_and_runs_again(node, job_id):
    assert pass_seconds(295) == []
    assert pass_seconds(10) == [job_id]
    [order] = node.sync().assignments
    assert isinstance(order, Stop)
    node.end(order.key, exit_code=None, reason=order.reason)
    attempt = Attempt.objects.get(job_id=job_id)
    assert (attempt.reason, state(job_id)) == ("node_fault", "pending")
    assert Job.objects.get(pk=job_id).retries_used == 0


def test_rank_whose_stop_is_ignored_is_ended(node, job_id):
    pass_seconds(305)
    assert pass_seconds(55) == []
    assert pass_seconds(10) == [job_id]
    assert state(job_id) == "pending"
    assert not Allocation.objects.exists()


def test_ignored_cancel_ends_the_job(node, job_id, user):
    job_actions.cancel(job_id, identity_for(user))
    pass_seconds(65)
    assert state(job_id) == "cancelled"


def test_started_job_has_no_start_timeout(node, job_id, user):
    node.start_all()
    assert pass_seconds(9000) == []
    job_actions.cancel(job_id, identity_for(user))
    assert pass_seconds(9000) == []
    assert state(job_id) == "stopping", "its process may live"


def test_control_plane_outage_does_not_count(node, job_id):
    now = timezone.now()
    ListenerLease.objects.create(id=1, since=now - timedelta(seconds=200), seen_at=now)
    assert pass_seconds(9000) == []
    ListenerLease.objects.update(since=now - timedelta(seconds=400))
    assert pass_seconds(0) == [job_id]
