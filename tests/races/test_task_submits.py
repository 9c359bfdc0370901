"""Submits of tasks that arrive together share a statement, and each keeps its own outcome."""

import threading
from functools import partial

import pytest
from django.db import connection, transaction

from gpusched.lib.db import grouping
from gpusched.lib.db.sql import query
from serving.endpoints import endpoints
from serving.models import Endpoint, InferenceRequest
from serving.requests import submit as submits
from serving.requests.submit import NewRequest, submit_if_unchanged
from tests.factories import identity_for, make_member
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)
SUBMITS = 6


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(grouping, "MAX_WAIT_SECONDS", 20)


@pytest.fixture
def users(tenant):
    return [make_member(tenant) for _ in range(SUBMITS)]


def read_endpoint(tenant, owner, **fields):
    values = {"name": "embed", "cost": 1.0, "template": {"command": ["true"]}, **fields}
    Endpoint.objects.create(tenant=tenant, owner=owner, **values)
    return endpoints.find("embed", None, identity_for(owner))


def submit_during_another(endpoint, users, change=lambda: None):
    """Submit a request of each user, the first of which waits for a lock while the others arrive. `change` is done
    under that lock. Return what each submit returned."""
    results = {}

    def submit(number, user):
        try:
            request = NewRequest(b'"%d"' % number, "application/json")
            results[number] = submit_if_unchanged(endpoint, [request], identity_for(user))
        finally:
            connection.close()

    threads = [threading.Thread(target=submit, args=item) for item in enumerate(users)]
    with transaction.atomic():
        Endpoint.objects.select_for_update().get(pk=endpoint.pk)
        change()
        for number, thread in enumerate(threads):
            thread.start()
            wait_for(partial(_has_waiting, endpoint, number))
    for thread in threads:
        thread.join(20)
    return [results[number] for number in range(len(users))]


def _has_waiting(endpoint, number):
    """Return whether so many submits wait for the statement of the first one."""
    group = submits._groups.last((endpoint.pk, endpoint.read_as, None), None)
    return group is not None and group._leader is not None and len(group._waiting) == number


def test_submits_that_arrive_together_share_a_statement(tenant, users):
    endpoint = read_endpoint(tenant, users[0])
    results = submit_during_another(endpoint, users)
    assert [result.queued for result in results] == [1, 2, 3, 4, 5, 6]
    for number, (user, result) in enumerate(zip(users, results, strict=True)):
        [row] = InferenceRequest.objects.filter(pk__in=result.ids)
        assert (row.user_id, bytes(row.payload)) == (user.pk, b'"%d"' % number)
    [count] = query("SELECT count(DISTINCT xmin::text) AS transactions FROM serving_inferencerequest")
    assert count["transactions"] == 2


def test_submits_that_arrive_together_stop_at_the_end_of_the_queue(tenant, users):
    endpoint = read_endpoint(tenant, users[0], max_queue=4)
    results = submit_during_another(endpoint, users)
    assert [result.queued for result in results if result] == [1, 2, 3, 4]
    assert results[4:] == [None, None]  # then `submit` refuses them
    assert InferenceRequest.objects.count() == 4


def test_submits_that_arrive_together_write_nothing_after_a_change(tenant, users):
    endpoint = read_endpoint(tenant, users[0])
    results = submit_during_another(endpoint, users, lambda: endpoints.drain(endpoint.pk, identity_for(users[0])))
    assert results[0].queued == 1  # it was executed before the change was committed
    assert results[1:] == [None] * (SUBMITS - 1)
    assert InferenceRequest.objects.count() == 1
