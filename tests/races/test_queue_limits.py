"""Concurrent submits never exceed a limit of the queue, and those of different tenants do not wait for each other (A61)."""

import time
from contextlib import suppress
from dataclasses import replace

import pytest
from django.db import transaction

from gpusched.lib.api.problems import Problem
from gpusched.protocol.job_request import JobRequest
from jobs.actions import job_actions
from jobs.models import Job
from jobs.submit import queue_limits, queue_locks
from jobs.submit.bulk import submit_all
from tests.at_once import at_once
from tests.factories import identity_for, make_member, make_tenant, submit

pytestmark = pytest.mark.django_db(transaction=True)
FAR = "2099-01-01T00:00:00Z"


@pytest.fixture
def limit(settings):
    def set_limits(**limits):
        settings.ENV = replace(settings.ENV, **limits)

    return set_limits


def outcomes(results):
    """Return how many were accepted and refused; fail for any other outcome."""
    refused = [result for result in results if isinstance(result, Problem)]
    assert {problem.status for problem in refused} <= {429}
    accepted = [result for result in results if not isinstance(result, Exception)]
    assert len(accepted) + len(refused) == len(results), results
    return len(accepted), len(refused)


def test_concurrent_submits_of_a_user_stop_exactly_at_the_limit(limit):
    """A61."""
    limit(max_queued_jobs_per_user=3)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    assert outcomes(at_once(*[lambda: submit(user, tenant)] * 8)) == (3, 5)
    assert Job.objects.count() == 3


def test_concurrent_submits_of_a_tenant_stop_exactly_at_the_limit(limit):
    limit(max_queued_jobs_per_tenant=4)
    tenant = make_tenant("nlp")
    users = [make_member(tenant) for _ in range(8)]
    assert outcomes(at_once(*[lambda user=user: submit(user, tenant) for user in users])) == (4, 4)


def test_concurrent_bulks_and_submits_never_exceed_the_limit(limit):
    limit(max_queued_jobs_per_user=5)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    identity = identity_for(user)
    bulk = [JobRequest(command=["x"])] * 2
    # With as many single jobs as the limit, it is reached in any order.
    outcomes(at_once(*[lambda: submit_all(bulk, identity)] * 4, *[lambda: submit(user, tenant)] * 5))
    assert Job.objects.count() == 5


def test_concurrent_releases_and_submits_never_exceed_the_limit(limit):
    limit(max_queued_jobs_per_user=3)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    identity = identity_for(user)
    held_jobs = []
    for _ in range(4):
        held_jobs.append(submit(user, tenant))
        job_actions.hold(held_jobs[-1], identity)
    outcomes(
        at_once(
            *[lambda id=id: job_actions.release(id, identity) for id in held_jobs], *[lambda: submit(user, tenant)] * 4
        )
    )
    assert Job.objects.filter(state="pending").count() == 3


def test_submit_does_not_wait_for_another_tenant_at_its_limit(limit):
    limit(max_queued_jobs_per_user=5)
    tenant, other = make_tenant("nlp"), make_tenant("vision")
    user = make_member(other)
    with transaction.atomic():
        queue_locks.lock([tenant.pk])
        [result] = at_once(lambda: submit(user, other))
    assert isinstance(result, int)


def test_release_and_a_submit_that_depends_on_the_job_do_not_deadlock(limit):
    limit(max_queued_jobs_per_user=100)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    identity = identity_for(user)
    job_id = submit(user, tenant)
    for _ in range(5):
        job_actions.hold(job_id, identity)
        works = [
            lambda: job_actions.release(job_id, identity),
            *[lambda: submit(user, tenant, depends_on=[job_id])] * 3,
        ]
        assert outcomes(at_once(*works)) == (4, 0)


def test_submits_far_from_a_limit_do_not_wait_for_each_other(limit):
    limit(max_queued_jobs_per_tenant=1_000)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    with transaction.atomic():
        queue_locks.share(tenant.pk)  # like another submit while it is written
        [result] = at_once(lambda: submit(user, tenant))
    assert isinstance(result, int)


def test_submit_is_refused_without_a_lock_when_the_queue_is_full(limit):
    limit(max_queued_jobs_per_tenant=1)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    submit(user, tenant)
    with transaction.atomic():
        queue_locks.lock([tenant.pk])
        assert outcomes(at_once(lambda: submit(user, tenant))) == (0, 1)


def test_concurrent_submits_stop_at_the_limit_where_locking_begins(limit):
    limit(max_queued_jobs_per_tenant=110)
    tenant = make_tenant("nlp")
    users = [make_member(tenant) for _ in range(6)]

    def fill(user):
        for _ in range(25):
            with suppress(Problem):
                submit(user, tenant)

    assert at_once(*[lambda user=user: fill(user) for user in users]) == [None] * 6
    assert Job.objects.count() == 110


def test_submit_after_a_bulk_of_another_process_stops_at_the_limit(limit):
    limit(max_queued_jobs_per_tenant=1_000)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    submit(user, tenant)
    stale = replace(queue_limits._counts.last(tenant.pk, queue_limits._NO_COUNT), by_user={})
    submit_all([JobRequest(command=["x"])] * 999, identity_for(user))
    queue_limits._counts.put(tenant.pk, replace(stale, counted_at=time.monotonic()))
    assert outcomes(at_once(lambda: submit(user, tenant))) == (0, 1)
    assert Job.objects.count() == 1_000


def test_hold_after_a_bulk_of_another_process_stops_at_the_limit(limit):
    limit(max_deferred_jobs_per_tenant=1_000)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    job_id = submit(user, tenant)
    stale = replace(queue_limits._counts.last(tenant.pk, queue_limits._NO_COUNT), by_user={})
    submit_all([JobRequest(command=["x"], not_before=FAR)] * 1_000, identity_for(user))
    queue_limits._counts.put(tenant.pk, replace(stale, counted_at=time.monotonic()))
    assert outcomes(at_once(lambda: job_actions.hold(job_id, identity_for(user)))) == (0, 1)


def test_holds_far_from_a_limit_do_not_wait_for_each_other(limit):
    limit(max_deferred_jobs_per_tenant=1_000)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    job_id = submit(user, tenant)
    with transaction.atomic():
        queue_locks.share(tenant.pk)
        [result] = at_once(lambda: job_actions.hold(job_id, identity_for(user)))
    assert result == f"job {job_id} is held"
