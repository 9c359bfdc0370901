"""Requests in PostgreSQL: claimed once, recorded once, returned to the queue, ended without a result."""

from datetime import timedelta

import pytest
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute
from serving.models import Dispatcher, InferenceRequest, Use
from serving.requests import claims, endings, recent_ends, results
from serving.requests.results import Outcome
from serving.requests.submit import NewRequest, submit
from tenants.models import BucketLevel, BucketScope, BucketUse, TokenBucket
from tests.at_once import at_once
from tests.factories import identity_for, make_member, make_tenant
from tests.serving.requests import ask, claim, make_endpoint, state

pytestmark = pytest.mark.django_db


def test_submitted_requests_wait_in_their_order(endpoint, user):
    ids = ask(endpoint, user, 3)
    found = claims.waiting([endpoint.pk], 10, now=0.0)
    assert [request.id for request in found[endpoint.pk]] == ids == sorted(ids)


def test_user_with_many_requests_does_not_hide_the_others(endpoint, tenant, user):
    """A66"""
    ask(endpoint, user, 50)
    other = make_member(tenant)
    [last] = ask(endpoint, other)
    assert last in {request.id for request in claims.waiting([endpoint.pk], 8, now=0.0)[endpoint.pk]}
    assert len(claims.waiting([endpoint.pk], 8, now=0.0)[endpoint.pk]) == 9


def test_request_is_claimed_once(endpoint, user):
    ids = ask(endpoint, user, 2)
    assert [claimed.id for claimed in claim(ids)] == ids
    assert claim(ids) == []
    assert claims.waiting([endpoint.pk], 8, now=0.0) == {}


def test_result_is_recorded_once_with_its_cost(endpoint, user):
    """A64"""
    [number] = ask(endpoint, user, units=2.5)
    [claimed] = claim([number])
    assert results.record([Outcome(number, claimed.attempt, b"1", "application/json")]) == [number]
    assert results.record([Outcome(number, claimed.attempt, b"2", "application/json")]) == []
    assert bytes(InferenceRequest.objects.get(pk=number).result or b"") == b"1"
    assert list(Use.objects.values_list("user_id", "requests", "cost")) == [(user.pk, 1, 2.5)]


def test_result_of_an_earlier_attempt_is_ignored(endpoint, user):
    """A64"""
    [number] = ask(endpoint, user)
    [first] = claim([number])
    claims.return_to_queue(1, {number: first.attempt}, alone=True)
    [second] = claim([number])
    assert second.attempt == first.attempt + 1
    assert results.record([Outcome(number, first.attempt, b"old")]) == []
    assert results.record([Outcome(number, second.attempt, b"new")]) == [number]


def test_waiting_client_gets_the_result_of_the_latest_attempt(endpoint, user, django_capture_on_commit_callbacks):
    """Results of two attempts may come in one round."""
    [number] = ask(endpoint, user)
    [first] = claim([number])
    claims.return_to_queue(1, {number: first.attempt}, alone=True)
    [second] = claim([number])
    with django_capture_on_commit_callbacks(execute=True):
        results.record([Outcome(number, second.attempt, b"new"), Outcome(number, first.attempt, b"old")])
        assert recent_ends.tasks([number]) == {}  # not before it is durable
    assert recent_ends.tasks([number])[number]["attempt"] == 2
    assert (
        bytes(InferenceRequest.objects.get().result or b"") == recent_ends._recent.last(number, {})["result"] == b"new"
    )


def test_failed_request_costs_nothing(endpoint, user):
    [number] = ask(endpoint, user)
    [claimed] = claim([number])
    results.record([Outcome(number, claimed.attempt, error_code="error", error="no")])
    assert (state(number), Use.objects.exists()) == ("failed", False)


def test_returned_request_runs_alone_if_its_batch_failed(endpoint, user):
    """A68"""
    ids = ask(endpoint, user, 2)
    attempts = {claimed.id: claimed.attempt for claimed in claim(ids)}
    claims.return_to_queue(1, attempts, alone=True)
    assert [request.is_alone for request in claims.waiting([endpoint.pk], 8, 0.0)[endpoint.pk]] == [True, True]


def test_requests_of_a_silent_web_process_return_to_the_queue(endpoint, user):
    """A64"""
    silent = Dispatcher.objects.create(seen_at=timezone.now() - timedelta(seconds=60))
    alive = Dispatcher.objects.create()
    lost, held = ask(endpoint, user, 2)
    claim([lost], dispatcher=silent.pk)
    claim([held], dispatcher=alive.pk)
    assert claims.return_of_silent(5.0) == {endpoint.pk}
    assert (state(lost), state(held)) == ("queued", "running")


def test_request_whose_batch_hung_waits_for_another_replica(endpoint, user):
    """A68: a batch that hangs ends after timeout_seconds, so that its requests are older than that."""
    ids = ask(endpoint, user, 2)
    attempts = {request.id: request.attempt for request in claim(ids)}
    execute("UPDATE serving_inferencerequest SET queued_at = queued_at - interval '31 s'")
    claims.return_to_queue(1, attempts, alone=True)
    assert endings.expire() == []
    execute("UPDATE serving_inferencerequest SET returned_at = returned_at - interval '31 s' WHERE id = %s", [ids[0]])
    assert [ended.id for ended in endings.expire()] == ids[:1]


def test_expired_request_ends_and_its_tokens_return(endpoint, user, tenant):
    """A67"""
    TokenBucket.objects.create(
        tenant=tenant, scope=BucketScope.USER, limits=BucketUse.TASKS, rate_per_second=0, burst=2, daily_budget=2
    )
    waiting, running = ask(endpoint, user, 2)
    claim([running])
    for table, column in (("serving_inferencerequest", "queued_at"), ("tenants_tokenbucket", "created_at")):
        execute(f"UPDATE {table} SET {column} = {column} - interval '31 s'")
    assert [ended.id for ended in endings.expire()] == [waiting]
    assert (state(waiting), state(running)) == ("expired", "running")
    assert BucketLevel.objects.get().level == 1.0


def test_cancelled_request_returns_its_tokens_only_before_its_start(endpoint, user, tenant):
    """A67"""
    TokenBucket.objects.create(
        tenant=tenant, scope=BucketScope.TENANT, limits=BucketUse.TASKS, rate_per_second=0, burst=10
    )
    waiting, running = ask(endpoint, user, 2)
    [claimed] = claim([running])
    assert {(ended.id, ended.was_queued) for ended in endings.cancel([waiting, running])} == {
        (waiting, True), (running, False),
    }  # fmt: skip
    assert endings.cancel([waiting, running]) == []
    assert results.record([Outcome(running, claimed.attempt, b"late")]) == []
    assert BucketLevel.objects.get().level == 9.0


def test_removed_endpoint_refuses_what_waits(endpoint, user):
    ids = ask(endpoint, user, 3)
    ended = endings.refuse_all(endpoint.pk, "endpoint_removed", "the endpoint was removed")
    assert sorted(request.id for request in ended) == ids
    assert state(ids[0]) == "refused"


def test_ended_requests_are_forgotten_after_their_time(endpoint, user):
    old, new, waiting = ask(endpoint, user, 3)
    endings.cancel([old, new])
    execute("UPDATE serving_inferencerequest SET ended_at = ended_at - interval '25 h' WHERE id = %s", [old])
    assert endings.forget(24.0) == 1
    assert set(InferenceRequest.objects.values_list("pk", flat=True)) == {new, waiting}


def test_full_queue_is_a_429_and_writes_nothing(tenant, user):
    endpoint = make_endpoint(tenant, user, max_queue=10)
    ask(endpoint, user, 7)
    assert submit(endpoint, [NewRequest(b"", "")], identity_for(user)).warning
    with pytest.raises(Problem) as caught:
        ask(endpoint, user, 3)
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert InferenceRequest.objects.count() == 8


def test_submit_without_tokens_is_a_429_and_writes_nothing(endpoint, tenant, user):
    TokenBucket.objects.create(
        tenant=tenant, scope=BucketScope.USER, limits=BucketUse.TASKS, rate_per_second=0, burst=2
    )
    ask(endpoint, user, 2)
    with pytest.raises(Problem) as caught:
        ask(endpoint, user)
    assert (caught.value.status, InferenceRequest.objects.count()) == (429, 2)


def test_draining_endpoint_accepts_nothing(tenant, user):
    with pytest.raises(Problem) as caught:
        ask(make_endpoint(tenant, user, state="draining"), user)
    assert caught.value.status == 409


@pytest.mark.django_db(transaction=True)
def test_concurrent_claims_never_share_a_request():
    """A64"""
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    ids = ask(make_endpoint(tenant, user), user, 30)
    claimed = [request.id for batch in at_once(*[lambda: claim(ids)] * 6) for request in batch]
    assert sorted(claimed) == ids


@pytest.mark.django_db(transaction=True)
def test_concurrent_results_of_an_attempt_are_recorded_once():
    """A64"""
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    [number] = ask(make_endpoint(tenant, user), user)
    [claimed] = claim([number])
    recorded = at_once(*[lambda: results.record([Outcome(number, claimed.attempt, b"1")])] * 6)
    assert sum(map(len, recorded)) == 1
    assert Use.objects.get().requests == 1
