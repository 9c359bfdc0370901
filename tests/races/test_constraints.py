"""Constraints that PostgreSQL enforces, with two real connections each (A18, A02, A03)."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute
from jobs.models import Attempt, Job
from nodes.models import Allocation, Assignment, Device
from tenants.billing import budgets
from tests.at_once import at_once
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def assignments():
    """Return a device of 1000 MiB, and two assignments of two jobs that do not hold it yet."""
    tenant = make_tenant()
    user = make_member(tenant)
    node = make_node(gpus=1, memory_mb=1000)
    jobs = [submit(user, tenant, gpu_count=0, cpu_cores=1) for _ in range(2)]
    run_cycle()
    device = Device.objects.get(node_id=node.id)
    return device, [Assignment.objects.get(job_id=job_id) for job_id in jobs]


def hold(assignment, device, memory_mb=None):
    def work():
        with transaction.atomic():
            Allocation.objects.create(
                assignment=assignment, device=device, memory_mb=memory_mb, since="2026-01-01T00:00:00Z"
            )

    return work


class TestDeviceHolds:
    """A18: the database refuses overlap and overflow, whatever the code does."""

    @pytest.mark.parametrize(("first", "second"), [(None, None), (None, 10), (10, None), (600, 600), (1000, 1)])
    def test_one_of_two_conflicting_allocations_is_refused(self, assignments, first, second):
        device, (a, b) = assignments
        results = at_once(hold(a, device, first), hold(b, device, second))
        assert sorted(type(result).__name__ for result in results) == ["IntegrityError", "NoneType"]
        assert Allocation.objects.count() == 1

    def test_two_allocations_share_a_device_when_they_fit(self, assignments):
        device, (a, b) = assignments
        assert at_once(hold(a, device, 600), hold(b, device, 400)) == [None, None]
        device.refresh_from_db()
        assert (device.held_whole, device.held_mb) == (0, 1000)

    def test_allocation_with_more_memory_than_the_device_is_refused(self, assignments):
        device, (a, _) = assignments
        with pytest.raises(IntegrityError):
            hold(a, device, 1001)()

    def test_released_device_can_be_allocated_again(self, assignments):
        device, (a, b) = assignments
        hold(a, device)()
        Allocation.objects.all().delete()
        hold(b, device)()
        device.refresh_from_db()
        assert device.held_whole == 1


def test_job_has_at_most_one_live_attempt(assignments):
    _, (a, _) = assignments
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.create(job_id=a.job_id, number=2, scheduled_at="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "change",
    [
        "state = 'unheard-of'",
        "state = 'completed'",
        "ended_at = now()",
        "state = 'stopping'",
        "state = 'running', attempt = 0",
    ],
)
def test_impossible_states_cannot_be_written(assignments, change):
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"UPDATE jobs_job SET {change}")


def test_parallel_submits_and_cycles_never_exceed_a_limit():
    """A02: 100 parallel submits and dispatches at a limit of 10 GPUs: at most 10 are allocated at any instant."""
    tenant = make_tenant(quota={"max_gpus": 10})
    user = make_member(tenant)
    for _ in range(4):
        make_node(gpus=8)
    over: list[int] = []
    is_over = threading.Event()

    def watch() -> None:
        with connection.cursor() as cursor:
            while not is_over.is_set():
                cursor.execute("SELECT count(*) FROM nodes_allocation")
                if (allocated := cursor.fetchone()[0]) > 10:
                    over.append(allocated)

    def submit_ten() -> None:
        for i in range(10):
            submit(user, tenant, gpu_count=1 + i % 2)
            run_cycle()

    def all_of_it() -> None:
        try:
            results = at_once(*[submit_ten] * 10)
            assert results == [None] * 10
        finally:
            is_over.set()

    assert at_once(watch, all_of_it) == [None, None]
    run_cycle()
    assert over == []
    assert Job.objects.count() == 100
    # Nine if the first waiting job needs two: the tenth GPU is then promised to it.
    assert Allocation.objects.count() in (9, 10)


def test_concurrent_submits_with_one_key_make_one_job():
    """A03"""
    from gpusched.protocol.job_request import JobRequest
    from jobs.submit.submit import submit as submit_request
    from tests.factories import identity_for

    tenant = make_tenant()
    user = make_member(tenant)
    request = JobRequest(command=["x"], tenant=tenant.name)
    identity = identity_for(user)

    results = at_once(*[lambda: submit_request(request, identity, "key", b"body")] * 8)

    assert len({result.answer for result in results}) == 1
    assert [result.is_replay for result in results].count(False) == 1
    assert Job.objects.count() == 1


def test_concurrent_submits_with_an_expired_key_make_one_job():
    """The one that drops the expired key has not yet written its job when another one looks for it."""
    from gpusched.protocol.job_request import JobRequest
    from jobs.submit.submit import submit as submit_request
    from tests.factories import identity_for

    tenant = make_tenant()
    identity = identity_for(make_member(tenant))
    request = JobRequest(command=["x"], tenant=tenant.name)
    for _ in range(5):
        submit_request(request, identity, "key", b"body")
        execute("UPDATE jobs_idempotencykey SET created_at = now() - interval '25 hours'")
        jobs = Job.objects.count()
        results = at_once(*[lambda: submit_request(request, identity, "key", b"body")] * 8)
        assert [result for result in results if isinstance(result, Exception)] == []
        assert len({result.answer for result in results}) == 1
        assert Job.objects.count() == jobs + 1


def test_concurrent_edits_of_the_first_budget_of_a_tenant_are_one_after_the_other():
    tenant = make_tenant()

    def change(hours: float) -> Callable[[], Any]:
        values = {"soft_gpu_hours": None, "hard_gpu_hours": hours, "days": None}
        return lambda: budgets.change(tenant.pk, values, actor="admin", expected_version=0)

    results = at_once(*[change(hours) for hours in (1.0, 2.0, 3.0, 4.0)])

    refused = [result.code for result in results if isinstance(result, Problem)]
    assert refused == ["version_conflict"] * 3
    assert [result.version for result in results if isinstance(result, budgets.BudgetStatus)] == [1]
