"""Time limits of arrays: of the record for all elements that have not ended, of one element by its own id."""

import threading

import pytest
from django.db import connection

from gpusched.lib.db.sql import retry_atomic
from gpusched.protocol.agent_messages import Limit, Run
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.states import Role
from jobs.arrays import materialize
from jobs.models import Job, JobEvent
from scheduling import policy
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.scheduling.test_extending import extend, minutes

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def node(user, tenant):
    return make_node(gpus=2)


@pytest.fixture
def array(user, tenant, node):
    """Five elements of an hour at most, of which two run."""
    job = submit(user, tenant, array=ArrayRequest(count=5), max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    return job


def elements(array):
    return list(Job.objects.filter(array_id=array).order_by("array_index").values_list("pk", flat=True))


def test_pending_array_starts_with_the_new_limit(user, tenant, node):
    array = submit(user, tenant, array=ArrayRequest(count=2), max_runtime_minutes=10)
    answer = extend(array, user, add_minutes=5).json()
    assert answer["message"] == f"each element of array {array} may now run for 15 minutes, once it has started"
    run_cycle()
    orders = [order for order in node.sync().assignments if isinstance(order, Run)]
    assert [order.spec.max_runtime_seconds for order in orders] == [900, 900]


def test_live_and_future_elements_get_the_limit_and_agents_receive_it(user, node, array):
    """Counted from the start of each; each element's events tell it."""
    answer = extend(array, user, add_minutes=30).json()
    assert (answer["status"], answer["ends_at"], answer["job"]["deadline_at"]) == ("changed", None, None)
    assert answer["message"] == f"each element of array {array} may now run for 90 minutes, 2 of them run already"
    assert [minutes(element) for element in [array, *elements(array)]] == [90, 90, 90]
    assert node.sync().limits == [Limit(key=key, version=1, max_runtime_seconds=5400) for key in node.held]
    limits = JobEvent.objects.filter(kind="limit_changed", job_id=elements(array)[0]).get()
    assert limits.data == {"from_seconds": 3600, "to_seconds": 5400, "array": array}
    assert JobEvent.objects.get(kind="limit_changed", job_id=array).data == {"from_seconds": 3600, "to_seconds": 5400}
    node.end(*node.held)
    run_cycle()
    orders = [order for order in node.sync().assignments if isinstance(order, Run)]
    assert [order.spec.max_runtime_seconds for order in orders] == [5400, 5400]


def test_element_keeps_its_own_limit(user, node, array):
    """Elements with their own change keep it; ended elements never change."""
    first, second = elements(array)
    assert extend(first, user, add_minutes=10).json()["message"].startswith(f"job {first} may now run for 70 minutes")
    node.end(node.held[1])
    assert extend(array, user, max_runtime_minutes=90).status_code == 200
    assert [minutes(element) for element in (array, first, second)] == [90, 70, 60]


def test_limit_below_the_runtime_of_an_element_is_rejected(user, array):
    Job.objects.filter(pk=elements(array)[0]).update(started_at="2020-01-01T00:00:00Z")
    refused = extend(array, user, max_runtime_minutes=30)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "max_runtime_minutes")
    assert f"an element of array {array} has run for " in refused.json()["detail"]
    assert minutes(array) == 60


def test_delay_of_its_own_elements_breaks_no_promise(user, array):
    run_cycle()
    answer = extend(array, user, add_minutes=30).json()
    assert (answer["status"], answer["delays"], answer["others_delayed"]) == ("changed", [], 0)


def test_member_extension_of_running_elements_is_limited_in_total(user, tenant, array):
    policy.change({"member_extend_minutes": 30}, actor="root")
    assert extend(array, user, add_minutes=30).status_code == 200
    refused = extend(array, user, add_minutes=1)
    assert (refused.status_code, refused.json()["code"]) == (403, "extension_too_long")
    assert "one of its elements to 90 minutes" in refused.json()["detail"]
    assert extend(array, make_member(tenant, Role.OWNER), add_minutes=600).status_code == 200


def test_promise_is_kept_from_an_array_too(user, tenant, node):
    """A12"""
    array = submit(user, tenant, array=ArrayRequest(count=2), max_runtime_minutes=60)
    run_cycle()
    node.start_all()
    other = make_tenant("other")
    promised = submit(make_member(other), other, gpu_count=2, max_runtime_minutes=10)
    run_cycle()
    refused = extend(array, make_member(tenant, Role.OWNER), add_minutes=60)
    assert (refused.status_code, refused.json()["code"]) == (409, "promised")
    forced = extend(array, make_user(admin=True), add_minutes=60, force=True).json()
    assert promised in [element["job_id"] for element in forced["delays"]]


def test_element_that_starts_meanwhile_gets_the_new_limit(user, tenant, array, node):
    """Elements become jobs while the array is locked: the change waits for them, and has them too."""
    answers = []

    def ask() -> None:
        answers.append(extend(array, user, add_minutes=30).status_code)
        connection.close()

    asking = threading.Thread(target=ask)

    def begin() -> None:
        materialize.materialize({array: 1})
        asking.start()
        asking.join(1.0)
        assert answers == [], "it waits"

    retry_atomic(begin)
    asking.join(30)
    assert answers == [200]
    assert [minutes(element) for element in elements(array)] == [90, 90, 90]
