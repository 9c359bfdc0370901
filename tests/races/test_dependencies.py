"""Concurrent submits and ends on real connections: no job waits for one that has ended."""

import pytest
from django.db import transaction

from gpusched.lib.db.sql import retry_atomic
from gpusched.protocol.dependencies import After, Dependency
from jobs.actions import job_actions
from jobs.lifecycle import states
from jobs.models import Dependency as DependencyRow
from jobs.models import Job
from tests.factories import identity_for, submit
from tests.races.elsewhere import Elsewhere, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)


def test_dependent_is_released_when_the_job_ends_during_its_submit(tenant, user):
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


def test_submit_waits_for_the_outcome_of_a_dependency_that_is_ending(tenant, user):
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


def test_indirect_dependent_is_cancelled_when_it_is_submitted_during_the_end(tenant, user):
    """The end searches for dependents again once the cancelled jobs are locked."""
    first = submit(user, tenant)
    second = submit(user, tenant, depends_on=[first])
    submitting = Elsewhere(lambda: submit(user, tenant, depends_on=[second]))
    assert submitting.is_done.wait(20)
    ending = Elsewhere(lambda: job_actions.cancel(first, identity_for(user)))
    wait_until_blocked(ending)
    submitting.commit()
    ending.commit()
    assert [job.reason for job in Job.objects.order_by("id")[1:]] == ["dependency_failed"] * 2
    assert not DependencyRow.objects.exists()


def test_dependent_is_released_when_both_its_dependencies_end_at_once(tenant, user):
    """Each transaction sees only its own end, so the second one must count again."""
    first, second = submit(user, tenant), submit(user, tenant)
    third = submit(
        user, tenant, depends_on=[Dependency(job=first_end, kind=After.ANY) for first_end in (first, second)]
    )
    first_end = Elsewhere(lambda: job_actions.cancel(first, identity_for(user)))
    assert first_end.is_done.wait(20)
    second_end = Elsewhere(lambda: job_actions.cancel(second, identity_for(user)))
    wait_until_blocked(second_end)
    first_end.commit()
    second_end.commit()
    job = Job.objects.get(pk=third)
    assert (job.reason, job.open_dependencies) == ("scheduler_behind", 0)


def test_rolled_back_end_releases_no_dependent(tenant, user):
    """As after a kill -9 before the commit: both changes are undone, and the retry makes both."""
    first = submit(user, tenant)
    second = submit(user, tenant, depends_on=[first])
    with transaction.atomic():
        states.cancel_waiting([first], {"by": "x"}, "x")
        assert Job.objects.get(pk=second).state == "cancelled"
        transaction.set_rollback(True)
    assert Job.objects.get(pk=second).reason == "dependency"
    retry_atomic(lambda: states.cancel_waiting([first], {"by": "x"}, "x"))
    assert Job.objects.get(pk=second).reason == "dependency_failed"
    assert not DependencyRow.objects.exists()
