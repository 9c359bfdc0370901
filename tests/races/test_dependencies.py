"""Submits against ends, and ends against ends: no job is left waiting for what is over, on real connections."""

import threading

import pytest
from django.db import connections, transaction

from gpusched.lib.db.sql import query, retry_atomic
from gpusched.protocol.dependencies import After, Dependency
from jobs.actions import job_actions
from jobs.lifecycle import states as writing
from jobs.models import Dependency as Edge
from jobs.models import Job
from tests.factories import identity_for, make_member, make_tenant, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant():
    return make_tenant()


@pytest.fixture
def user(tenant):
    return make_member(tenant)


class Elsewhere:
    """Work in a thread with a connection of its own, whose transaction stays open until it is told to commit."""

    def __init__(self, work):
        self.is_done, self.may_commit = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=(work,))
        self.thread.start()

    def _run(self, work):
        try:
            with transaction.atomic():
                work()
                self.is_done.set()
                self.may_commit.wait(20)
        finally:
            connections.close_all()

    def commit(self):
        self.may_commit.set()
        self.thread.join(20)


def blocked():
    """Whether somebody waits for a lock."""
    return query("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")


def wait_until_blocked(other):
    for _ in range(2000):
        if blocked() or other.is_done.wait(0.005):
            return


def test_a_job_that_ends_while_one_after_it_is_submitted_lets_it_go(tenant, user):
    """The end waits for the submit, and then sees it."""
    first = submit(user, tenant)
    submitting = Elsewhere(lambda: submit(user, tenant, depends_on=[Dependency(job=first, kind=After.ANY)]))
    assert submitting.is_done.wait(20)
    ending = Elsewhere(lambda: job_actions.cancel(first, identity_for(user)))
    wait_until_blocked(ending)
    submitting.commit()
    ending.commit()
    [second] = Job.objects.exclude(pk=first)
    assert (second.state, second.reason, second.open_dependencies) == ("pending", "scheduler_behind", 0)


def test_a_job_submitted_after_one_that_is_ending_waits_for_the_verdict(tenant, user):
    """The submit waits for the end, and then sees it."""
    first = submit(user, tenant)
    ending = Elsewhere(lambda: job_actions.cancel(first, identity_for(user)))
    assert ending.is_done.wait(20)
    submitting = Elsewhere(lambda: submit(user, tenant, depends_on=[Dependency(job=first, kind=After.ANY)]))
    wait_until_blocked(submitting)
    ending.commit()
    submitting.commit()
    [second] = Job.objects.exclude(pk=first)
    assert (second.state, second.reason, second.open_dependencies) == ("pending", "scheduler_behind", 0)


def test_a_job_submitted_after_one_down_the_line_of_one_that_is_ending_ends_with_it(tenant, user):
    """What can never start is looked for again once it is locked."""
    first = submit(user, tenant)
    second = submit(user, tenant, depends_on=[first])
    submitting = Elsewhere(lambda: submit(user, tenant, depends_on=[second]))
    assert submitting.is_done.wait(20)
    ending = Elsewhere(lambda: job_actions.cancel(first, identity_for(user)))
    wait_until_blocked(ending)
    submitting.commit()
    ending.commit()
    assert [job.reason for job in Job.objects.order_by("id")[1:]] == ["dependency_failed"] * 2
    assert not Edge.objects.exists()


def test_two_that_end_at_once_let_go_the_job_that_waits_for_both(tenant, user):
    """Each sees its own end alone: whoever comes second counts again."""
    first, second = submit(user, tenant), submit(user, tenant)
    third = submit(user, tenant, depends_on=[Dependency(job=one, kind=After.ANY) for one in (first, second)])
    one = Elsewhere(lambda: job_actions.cancel(first, identity_for(user)))
    assert one.is_done.wait(20)
    other = Elsewhere(lambda: job_actions.cancel(second, identity_for(user)))
    wait_until_blocked(other)
    one.commit()
    other.commit()
    job = Job.objects.get(pk=third)
    assert (job.reason, job.open_dependencies) == ("scheduler_behind", 0)


def test_an_end_that_is_rolled_back_has_let_nobody_go(tenant, user):
    """A kill -9 between the end and its commit: both are undone, and the next try finds both."""
    first = submit(user, tenant)
    second = submit(user, tenant, depends_on=[first])
    with transaction.atomic():
        writing.cancel_waiting([first], {"by": "x"}, "x")
        assert Job.objects.get(pk=second).state == "cancelled"
        transaction.set_rollback(True)
    assert Job.objects.get(pk=second).reason == "dependency"
    retry_atomic(lambda: writing.cancel_waiting([first], {"by": "x"}, "x"))
    assert Job.objects.get(pk=second).reason == "dependency_failed"
    assert not Edge.objects.exists()
