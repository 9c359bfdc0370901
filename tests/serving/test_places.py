"""Places at replicas of the OpenAI API: exact from several processes, first come first served, least loaded first."""

import threading

import pytest
from django.db import transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute, query
from serving.models import Dispatcher, InferenceRequest, Protocol, Replica
from serving.openai import places, recorder, upkeep
from serving.openai.recorder import Ending, FailedReplica
from serving.replicas.reconcile import reconcile
from serving.replicas.scaling import decide
from serving.requests.results import Outcome
from serving.requests.submit import NewRequest, submit
from serving.upkeep import keep_queue
from tests.at_once import at_once
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle
from tests.serving.requests import make_endpoint
from tests.serving.test_replicas import live, make, make_warm
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def user():
    return make_member(make_tenant("nlp"))


@pytest.fixture
def me():
    """Return the lease of a living web process."""
    return Dispatcher.objects.create().pk


def make_chat(user, **fields):
    tenant = make_tenant("llm")
    return make_endpoint(tenant, user, name="chat", protocol=Protocol.OPENAI, port=8000, **fields)


def add_replica(endpoint, job_id, dispatcher=1):
    Replica.objects.create(job_id=job_id, endpoint=endpoint, dispatcher=dispatcher)
    execute("UPDATE serving_replica SET warm_at = now() WHERE job_id = %s", [job_id])


def ask(endpoint, user, dispatcher, count=1):
    ids = []
    for _ in range(count):
        ids += submit(endpoint, [NewRequest(b"", "")], identity_for(user), dispatcher).ids
    return ids


def loads():
    rows = query(
        "SELECT replica_job_id AS job, count(*) AS n FROM serving_inferencerequest WHERE state = 'running' GROUP BY 1"
    )
    return {row["job"]: row["n"] for row in rows}


def test_least_loaded_replica_gets_the_next_request(user, me):
    endpoint = make_chat(user, max_batch=4)
    add_replica(endpoint, 11)
    add_replica(endpoint, 12)
    for expected in ({11: 1}, {11: 1, 12: 1}, {11: 2, 12: 1}):
        places.assign(me, endpoint.pk, ask(endpoint, user, me))
        assert loads() == expected
    [busy] = places.assign(me, endpoint.pk, ask(endpoint, user, me))
    assert busy.job_id == 12


def hang(job_id, me):
    """A request fails at this replica, which answers a probe again."""
    recorder.record([FailedReplica(job_id)])
    upkeep.prove(me, job_id)


@pytest.mark.parametrize(
    "fail",
    [*(lambda job, _, status=status: places.answered(job, status) for status in (429, 500, 503)), hang],
    ids=["429", "500", "503", "hang"],
)
def test_replica_that_fails_requests_gets_them_only_if_the_others_are_full(user, me, monkeypatch, fail):
    """A68: an error is quick, so that replica always had the fewest requests, and got every one while the other was
    idle."""
    endpoint = make_chat(user, max_batch=2)
    add_replica(endpoint, 11)
    add_replica(endpoint, 12)
    fail(11, me)
    places.answered(12, 404)
    for expected in ({12: 1}, {12: 2}, {12: 2, 11: 1}):
        places.assign(me, endpoint.pk, ask(endpoint, user, me))
        assert loads() == expected
    recorder.record([Outcome(request.pk, 1) for request in InferenceRequest.objects.all()])
    monkeypatch.setattr(places, "AVOID_SECONDS", 0.0)
    places.assign(me, endpoint.pk, ask(endpoint, user, me))
    assert loads() == {11: 1}


def test_requests_get_places_in_their_order_up_to_max_batch(user, me):
    endpoint = make_chat(user, max_batch=2)
    add_replica(endpoint, 11)
    ids = ask(endpoint, user, me, 4)
    assert places.assign(me, endpoint.pk, ids[2:]) == []
    assert [place.request for place in places.assign(me, endpoint.pk, ids)] == ids[:2]
    assert places.assign(me, endpoint.pk, ids) == []
    recorder.record([Outcome(ids[0], 1)])
    assert [place.request for place in places.assign(me, endpoint.pk, ids)] == [ids[2]]


@pytest.mark.parametrize("change", ["dispatcher = NULL", "warm_at = NULL", "is_draining = true", "ended_at = now()"])
def test_replica_that_must_prove_itself_gets_no_request(user, me, change):
    endpoint = make_chat(user)
    add_replica(endpoint, 11)
    execute(f"UPDATE serving_replica SET {change}")
    assert places.assign(me, endpoint.pk, ask(endpoint, user, me)) == []


def test_request_of_a_silent_web_process_takes_no_place_and_is_ended(user, me):
    endpoint = make_chat(user, max_batch=1)
    add_replica(endpoint, 11)
    silent = Dispatcher.objects.create().pk
    execute("UPDATE serving_dispatcher SET seen_at = now() - interval '6 s' WHERE id = %s", [silent])
    [lost] = ask(endpoint, user, silent)
    [mine] = ask(endpoint, user, me)
    assert [place.request for place in places.assign(me, endpoint.pk, [mine])] == [mine]
    keep_queue()
    row = InferenceRequest.objects.get(pk=lost)
    assert (row.state, row.error_code) == ("cancelled", "client_left")


def test_request_in_progress_of_a_silent_web_process_is_ended(user, me):
    endpoint = make_chat(user, max_batch=1)
    add_replica(endpoint, 11)
    silent = Dispatcher.objects.create().pk
    [lost] = ask(endpoint, user, silent)
    places.assign(silent, endpoint.pk, [lost])
    execute("UPDATE serving_dispatcher SET seen_at = now() - interval '6 s' WHERE id = %s", [silent])
    keep_queue()
    assert InferenceRequest.objects.get(pk=lost).state == "cancelled"


def test_place_of_an_unknown_request_is_freed(user, me):
    endpoint = make_chat(user, max_batch=2)
    add_replica(endpoint, 11)
    ids = ask(endpoint, user, me, 2)
    places.assign(me, endpoint.pk, ids)
    execute("UPDATE serving_inferencerequest SET started_at = now() - interval '61 s'")
    upkeep.keep_up(me, [], ids[:1], {}, [], [])
    assert dict(InferenceRequest.objects.values_list("pk", "state")) == {ids[0]: "running", ids[1]: "cancelled"}


def test_request_returns_to_its_place_in_the_queue_when_its_replica_fails(user, me):
    endpoint = make_chat(user, max_batch=1)
    add_replica(endpoint, 11)
    ids = ask(endpoint, user, me, 2)
    [place] = places.assign(me, endpoint.pk, ids)
    places.give_back(place)
    assert places.assign(me, endpoint.pk, ids) == []
    add_replica(endpoint, 12)
    [again] = places.assign(me, endpoint.pk, ids)
    assert again == (ids[0], 2, 12)


@pytest.mark.parametrize("is_own", [True, False])
def test_unreachable_replica_must_prove_itself_only_to_the_process_that_proved_it(user, me, is_own):
    """At another head it may serve on."""
    other = Dispatcher.objects.create().pk
    endpoint = make_chat(user)
    add_replica(endpoint, 11, me if is_own else other)
    ids = ask(endpoint, user, me)
    [place] = places.assign(me, endpoint.pk, ids)
    places.give_back(place, is_unreachable=True)
    assert Replica.objects.get().dispatcher == (None if is_own else other)
    assert len(places.assign(me, endpoint.pk, ids)) == (0 if is_own else 1)


def test_unreachable_replica_gets_no_request_for_a_while_if_there_is_another(user, me, monkeypatch):
    other = Dispatcher.objects.create().pk
    endpoint = make_chat(user, max_batch=2)
    add_replica(endpoint, 11, other)
    [first] = ask(endpoint, user, other)
    ids = ask(endpoint, user, me, 4)
    [place] = places.assign(me, endpoint.pk, ids)
    places.give_back(place, is_unreachable=True)
    add_replica(endpoint, 12, me)
    # The request of the other process may wait for 11, and does not keep places at 12 free.
    assert [place[::2] for place in places.assign(me, endpoint.pk, ids)] == [(ids[0], 12), (ids[1], 12)]
    assert places.assign(me, endpoint.pk, ids) == []
    monkeypatch.setattr(places, "AVOID_SECONDS", 0.0)
    assert [place.job_id for place in places.assign(other, endpoint.pk, [first])] == [11]
    assert [place.job_id for place in places.assign(me, endpoint.pk, ids)] == [11]  # its second place


def test_record_ends_many_requests_and_releases_failed_replicas(user, me):
    endpoint = make_chat(user)
    add_replica(endpoint, 11)
    ids = ask(endpoint, user, me, 3)
    places.assign(me, endpoint.pk, ids)
    recorder.record(
        [
            Outcome(ids[0], 1),
            Ending(ids[1], "cancelled", "client_left", "x"),
            Outcome(ids[2], 1, error_code="timeout"),
            FailedReplica(11),
        ]
    )
    rows = InferenceRequest.objects.order_by("pk").values_list("state", "error_code")
    assert list(rows) == [("completed", ""), ("cancelled", "client_left"), ("failed", "timeout")]
    assert Replica.objects.get().dispatcher is None


@pytest.mark.django_db(transaction=True)
def test_processes_at_once_never_give_more_than_max_batch(user):
    """The earlier request is committed later. Fails without the lock: both processes count the same place as free."""
    endpoint = make_chat(user, max_batch=1)
    add_replica(endpoint, 11)
    leases = [Dispatcher.objects.create().pk for _ in range(2)]
    is_inserted, is_assigned, is_done = threading.Event(), threading.Event(), threading.Event()

    def earlier():
        with transaction.atomic():
            ids = ask(endpoint, user, leases[0])
            is_inserted.set()
            assert is_assigned.wait(20)
            places.assign(leases[0], endpoint.pk, ids)
        is_done.set()

    def later():
        assert is_inserted.wait(20)
        with transaction.atomic():
            places.assign(leases[1], endpoint.pk, ask(endpoint, user, leases[1]))
            is_assigned.set()
            waits = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            wait_for(lambda: is_done.is_set() or query(waits), 20, "the other process to wait")

    assert at_once(earlier, later) == [None, None]
    assert loads() == {11: 1}
    assert InferenceRequest.objects.filter(state="queued").count() == 1


def test_busy_replica_is_not_stopped_by_a_decision_from_before(user, monkeypatch):
    node = make_node(gpus=4)
    tenant = make_tenant("nlp2")
    member = make_member(tenant)
    lease = Dispatcher.objects.create().pk
    endpoint = make(tenant, member, protocol="openai", port=8000, idle_seconds=1, min_replicas=1)
    reconcile()
    [job_id] = live()
    run_cycle()
    node.start_all()
    make_warm(job_id, 100)
    execute("UPDATE serving_replica SET dispatcher = %s", [lease])
    execute("UPDATE serving_endpoint SET min_replicas = 0")

    def decide_late(demand):
        decision = decide(demand)
        places.assign(lease, endpoint.pk, submit(endpoint, [NewRequest(b"", "")], identity_for(member), lease).ids)
        return decision

    monkeypatch.setattr("serving.replicas.reconcile.decide", decide_late)
    reconcile()
    assert live() == [job_id]
    monkeypatch.setattr("serving.replicas.reconcile.decide", decide)
    execute("UPDATE serving_inferencerequest SET state = 'completed', ended_at = now()")
    reconcile()
    assert live() == []


def test_endpoint_takes_requests_only_by_its_protocol(user, me):
    chat, batch = make_chat(user), make_endpoint(make_tenant("b"), user)
    for endpoint, dispatcher in ((chat, None), (batch, me)):
        with pytest.raises(Problem) as caught:
            ask(endpoint, user, dispatcher)
        assert (caught.value.status, caught.value.code) == (400, "wrong_protocol")
