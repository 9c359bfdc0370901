"""Costs of requests, and refunds of tokens."""

from datetime import UTC, datetime, timedelta

import pytest

from gpusched.lib.db.sql import execute
from serving.endpoints import endpoints
from serving.models import InferenceRequest, Use
from serving.requests import claims, endings, results
from serving.requests.results import Outcome
from tenants import buckets
from tenants.models import BucketLevel, BucketScope, BucketUse, TokenBucket
from tests.factories import identity_for, make_member, make_node, make_tenant
from tests.serving.requests import ask, claim, make_endpoint

pytestmark = pytest.mark.django_db


def make_buckets(tenant, burst=100.0):
    """Create buckets that have been there for days."""
    for scope in (BucketScope.TENANT, BucketScope.USER):
        TokenBucket.objects.create(
            tenant=tenant, scope=scope, limits=BucketUse.TASKS, rate_per_second=0, burst=burst, daily_budget=burst,
            created_at=datetime.now(UTC) - timedelta(days=3),
        )  # fmt: skip


def used():
    """Return the tokens missing and the part of the daily budget spent, of each bucket level."""
    return {(100.0 - level, spent) for level, spent in BucketLevel.objects.values_list("level", "spent")}


@pytest.mark.parametrize(("kind", "cost"), [("embedding", 1.0), ("llm", 5.0), ("diffusion", 10.0), ("other", 1.0)])
def test_default_cost_follows_the_type(tenant, user, kind, cost):
    make_node()
    fields = {"name": "model", "type": kind, "template": {"command": ["serve"], "gpu_count": 1}}
    assert endpoints.create(tenant.pk, fields, identity_for(user)).cost == cost


def test_units_multiply_the_cost_in_bucket_request_and_ledger(tenant, user):
    make_buckets(tenant)
    endpoint = make_endpoint(tenant, user, cost=5.0)
    [number] = ask(endpoint, user, units=2.5)
    assert InferenceRequest.objects.get().cost == 12.5
    assert used() == {(12.5, 12.5)}
    [claimed] = claim([number])
    results.record([Outcome(number, claimed.attempt, b"1")])
    assert Use.objects.get().cost == 12.5
    assert used() == {(12.5, 12.5)}


@pytest.mark.parametrize("ending", ["cancelled", "expired", "refused"])
def test_request_that_ends_before_its_start_gets_its_tokens_back(tenant, user, ending):
    """A67"""
    make_buckets(tenant)
    endpoint = make_endpoint(tenant, user, cost=2.0)
    kept, ended = ask(endpoint, user, units=3.0), ask(endpoint, user, 3, units=1.5)
    assert used() == {(15.0, 15.0)}
    claim(kept)
    end(ending, endpoint, ended)
    assert set(InferenceRequest.objects.filter(pk__in=ended).values_list("state", flat=True)) == {ending}
    assert used() == {(6.0, 6.0)}
    end(ending, endpoint, ended)
    assert used() == {(6.0, 6.0)}


def end(ending, endpoint, ids):
    if ending == "cancelled":
        endings.cancel(ids)
    elif ending == "refused":
        endings.refuse_all(endpoint.pk, "endpoint_removed", "the endpoint was removed")
    else:
        for column in ("queued_at", "returned_at"):
            sql = f"UPDATE serving_inferencerequest SET {column} = {column} - interval '31 s' WHERE id = ANY(%s)"
            execute(sql, [ids])
        endings.expire()


@pytest.mark.parametrize(("ending", "tokens"), [("cancelled", 1.0), ("expired", 0.0)])
def test_request_that_returned_to_the_queue_gets_tokens_back_unless_it_is_cancelled(tenant, user, ending, tokens):
    """A67"""
    make_buckets(tenant)
    endpoint = make_endpoint(tenant, user)
    [number] = ask(endpoint, user)
    [claimed] = claim([number])
    claims.return_to_queue(1, {number: claimed.attempt}, alone=False)
    end(ending, endpoint, [number])
    assert used() == {(tokens, tokens)}


@pytest.mark.parametrize(("code", "tokens"), [("replica_lost", 1.0), ("replica_unreachable", 0.0)])
def test_failed_request_gets_tokens_back_only_if_it_reached_no_replica(tenant, user, code, tokens):
    """A67: a request that makes replicas exit must not be free. Batches and streams that fail keep their tokens, too."""
    make_buckets(tenant)
    [number] = ask(make_endpoint(tenant, user), user)
    claim([number])
    endings.end([number], "failed", code, "")
    assert used() == {(tokens, tokens)}


def test_each_user_gets_the_own_tokens_back(tenant, user):
    """A67"""
    make_buckets(tenant)
    other = make_member(tenant)
    endpoint = make_endpoint(tenant, user)
    mine, theirs = ask(endpoint, user, 2), ask(endpoint, other, 5)
    endings.cancel([*mine, *theirs[:3]])
    levels = dict(BucketLevel.objects.values_list("user_id", "spent"))
    assert levels == {0: 2.0, user.pk: 0.0, other.pk: 2.0}


def test_tokens_taken_after_midnight_of_a_half_hour_time_zone_return_to_the_day(user):
    """A67: midnight in Kolkata is 18:30 UTC."""
    tenant = make_tenant("kolkata", time_zone="Asia/Kolkata")
    make_buckets(tenant)
    member = make_member(tenant)
    [number] = ask(make_endpoint(tenant, member), member)
    now = datetime.now(UTC)
    midnight = now.replace(hour=18, minute=30, second=0, microsecond=0)
    midnight -= timedelta(days=1) if midnight > now else timedelta()
    execute("UPDATE serving_inferencerequest SET queued_at = %s", [min(now, midnight + timedelta(minutes=5))])
    endings.cancel([number])
    assert set(BucketLevel.objects.values_list("spent", flat=True)) == {0.0}


def test_requests_from_before_a_bucket_put_no_tokens_into_it(tenant, user):
    """A67: an admin limits a user who has filled the queue."""
    endpoint = make_endpoint(tenant, user)
    before = ask(endpoint, user, 50)
    execute("UPDATE serving_inferencerequest SET queued_at = queued_at - interval '2 min'")
    make_buckets(tenant)
    TokenBucket.objects.update(created_at=datetime.now(UTC) - timedelta(minutes=1))
    after = ask(endpoint, user, 30)
    assert used() == {(30.0, 30.0)}
    endings.cancel([*before, *after[:10]])
    assert used() == {(20.0, 20.0)}


def test_refused_submit_takes_no_tokens(tenant, user):
    """A67"""
    make_buckets(tenant)
    endpoint = make_endpoint(tenant, user, max_queue=2)
    ask(endpoint, user, 2)
    with pytest.raises(Exception, match="queued requests"):
        ask(endpoint, user)
    with pytest.raises(Exception, match="at once"):
        ask(make_endpoint(tenant, user, name="dear", cost=60.0), user, 2)
    assert used() == {(2.0, 2.0)}
    room = buckets.take(tenant.pk, user.pk, BucketUse.TASKS, 98.0)
    assert room and room.remaining == 0
