"""Tasks that end while others have their rows, or the buckets of their users, locked."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pytest
from django.db import connection, transaction

from gpusched.lib.db.sql import query
from serving.requests import endings
from tenants.models import BucketLevel, BucketScope, BucketUse, TokenBucket
from tests.factories import make_member, make_tenant
from tests.serving.requests import ask, claim, make_endpoint, state
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
T = TypeVar("T")
# Those that wait for this transaction, directly or behind another one that does.
_WAITING = """
    WITH blocked AS (SELECT DISTINCT pid, pg_blocking_pids(pid) AS others FROM pg_locks WHERE NOT granted)
    SELECT count(*) AS number FROM blocked b WHERE pg_backend_pid() = ANY(others) OR EXISTS (
           SELECT FROM blocked a WHERE a.pid = ANY(b.others) AND pg_backend_pid() = ANY(a.others))
"""


def begin(pool: ThreadPoolExecutor, work: Callable[[], T], waiting: int) -> Future[T]:
    """Run work in a thread, and return once so many transactions wait for a lock."""

    def run() -> T:
        try:
            return work()
        finally:
            connection.close()

    future = pool.submit(run)
    wait_for(lambda: query(_WAITING)[0]["number"] == waiting, 20, f"{waiting} transactions to wait for a lock")
    return future


def test_cancel_waits_for_a_dispatcher_that_has_the_task_locked() -> None:
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    endpoint = make_endpoint(tenant, user)
    [number] = ask(endpoint, user)
    with ThreadPoolExecutor() as pool:
        with transaction.atomic():
            assert claim([number], endpoint.pk)
            ended = begin(pool, lambda: endings.cancel([number]), waiting=1)
        assert ended.result(20) == [endings.Ended(number, was_queued=False)]
    assert state(number) == "cancelled"


def test_refunds_of_several_users_do_not_deadlock_with_a_submit() -> None:
    """The refund of one user locks this user's level and then the tenant's, which a submit of another user locks after
    that user's."""
    tenant = make_tenant("nlp")
    users = [make_member(tenant) for _ in range(2)]
    for scope in (BucketScope.USER, BucketScope.TENANT):  # locked in the order of their ids
        TokenBucket.objects.create(
            tenant=tenant, scope=scope, limits=BucketUse.TASKS, rate_per_second=0.001, burst=100.0
        )
    endpoint = make_endpoint(tenant, users[0])
    ids = [number for user in users for number in ask(endpoint, user)]
    with ThreadPoolExecutor() as pool:
        with transaction.atomic():
            BucketLevel.objects.select_for_update().get(bucket__scope=BucketScope.TENANT)
            ended = begin(pool, lambda: endings.cancel(ids), waiting=1)
            submitted = begin(pool, lambda: ask(endpoint, users[1]), waiting=2)
        assert sorted(request.id for request in ended.result(20)) == ids
        assert len(submitted.result(20)) == 1
    [level] = BucketLevel.objects.filter(bucket__scope=BucketScope.TENANT).values_list("level", flat=True)
    assert level == pytest.approx(99, abs=0.1)
