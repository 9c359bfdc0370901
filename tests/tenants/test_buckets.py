"""Token buckets: exact rates for any polling interval, bursts, daily budgets in the tenant's time zone, refunds."""

from datetime import UTC, datetime, timedelta
from zoneinfo import available_timezones

import pytest
from django.db import connection, transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from tenants import bucket_limits, buckets
from tenants.models import BucketLevel, BucketScope, BucketUse, TokenBucket
from tenants.models.buckets import MAX_BURST, MIN_RATE
from tests.api.calls import call
from tests.at_once import at_once
from tests.factories import make_member, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


def bucket(tenant, scope=BucketScope.USER, user=None, limits=BucketUse.TASKS, **fields):
    values = {"rate_per_second": 1.0, "burst": 10.0, **fields}
    return TokenBucket.objects.create(tenant=tenant, scope=scope, user=user, limits=limits, **values)


def take(tenant, user, cost=1.0, after=0.0, at=NOON, limits=BucketUse.TASKS):
    """Take at a time; return whether it was admitted."""
    try:
        buckets.take(tenant.pk, user.pk, limits, cost, now=at + timedelta(seconds=after))
    except Problem as problem:
        if problem.code == "out_of_tokens":
            return False
        raise
    return True


def refusal(tenant, user, cost=1.0, at=NOON):
    with pytest.raises(Problem) as caught:
        buckets.take(tenant.pk, user.pk, BucketUse.TASKS, cost, now=at)
    return caught.value


@pytest.mark.parametrize("interval", [0.001, 0.01, 1.0])
def test_admitted_rate_does_not_depend_on_the_polling_interval(tenant, user, interval):
    """A67"""
    rate, burst, seconds = 40.0, 60.0, 5 if interval < 0.01 else 20
    bucket(tenant, rate_per_second=rate, burst=burst)
    admitted = 0
    for number in range(round(seconds / interval) + 1):
        while take(tenant, user, after=number * interval):
            admitted += 1
            if interval < 1.0:
                break
    assert admitted == pytest.approx(burst + rate * seconds, rel=0.005)
    assert admitted <= burst + rate * seconds


def test_full_bucket_admits_its_burst_at_once_and_no_more(tenant, user):
    """A67"""
    bucket(tenant, burst=5.0)
    assert [take(tenant, user) for _ in range(7)] == [True] * 5 + [False] * 2
    assert [take(tenant, user, after=3600) for _ in range(7)] == [True] * 5 + [False] * 2


def test_take_is_admitted_by_all_buckets_or_none(tenant, user):
    bucket(tenant, BucketScope.TENANT, burst=2.0, rate_per_second=0.0)
    bucket(tenant, BucketScope.USER, burst=10.0, rate_per_second=0.0)
    assert [take(tenant, user) for _ in range(4)] == [True, True, False, False]
    assert sorted(BucketLevel.objects.values_list("level", flat=True)) == [0.0, 8.0]


def test_bucket_for_each_user_is_not_shared(tenant, user):
    bucket(tenant, burst=1.0, rate_per_second=0.0)
    other = make_member(tenant)
    assert (take(tenant, user), take(tenant, user), take(tenant, other)) == (True, False, True)


def test_bucket_of_a_named_user_replaces_the_one_for_each_user(tenant, user):
    bucket(tenant, burst=1.0, rate_per_second=0.0)
    bucket(tenant, user=user, burst=3.0, rate_per_second=0.0)
    assert [take(tenant, user) for _ in range(4)] == [True, True, True, False]


def test_buckets_of_tasks_and_of_jobs_are_separate(tenant, user):
    bucket(tenant, burst=1.0, rate_per_second=0.0, limits=BucketUse.JOBS)
    assert take(tenant, user, cost=100.0)
    assert take(tenant, user, limits=BucketUse.JOBS)
    assert not take(tenant, user, limits=BucketUse.JOBS)


def test_user_without_a_bucket_is_not_limited(tenant, user):
    bucket(make_tenant("other"))
    assert buckets.take(tenant.pk, user.pk, BucketUse.TASKS, 1e9) is None


def test_refused_take_is_retried_after_the_seconds_of_the_refusal(tenant, user):
    """A67"""
    bucket(tenant, burst=4.0, rate_per_second=0.5)
    assert take(tenant, user, cost=4.0)
    problem = refusal(tenant, user, cost=3.0)
    assert problem.retry_after == 6
    assert not take(tenant, user, cost=3.0, after=5.9)
    assert take(tenant, user, cost=3.0, after=6)


def test_lowest_rate_announces_a_number_of_seconds(tenant, user):
    bucket(tenant, burst=MAX_BURST, rate_per_second=MIN_RATE)
    assert buckets.take(tenant.pk, user.pk, BucketUse.TASKS, MAX_BURST, now=NOON) == (MAX_BURST, 0, 1e13)
    assert refusal(tenant, user).retry_after == 1e6


@pytest.mark.parametrize("rate", [1e-310, 1e-7])
def test_rate_whose_wait_is_no_number_is_a_400(tenant, rate):
    """Each submit of the tenant failed with a 500."""
    with pytest.raises(Problem) as refused:
        bucket_limits.create(tenant, {"scope": "tenant", "user": None, "limits": "tasks", "rate_per_second": rate,
                                      "burst": 2.0}, "root")  # fmt: skip
    assert (refused.value.status, refused.value.errors[0].field) == (400, "rate_per_second")


def test_cost_above_the_burst_is_a_400(tenant, user):
    bucket(tenant, burst=4.0)
    problem = refusal(tenant, user, cost=4.5)
    assert (problem.status, problem.code) == (400, "exceeds_burst")


def test_refusals_name_limits_that_are_admitted(tenant, user):
    """A60"""
    bucket(tenant, rate_per_second=0.01, burst=1000.04, daily_budget=20.25)
    assert "needs 1000.05 cost of tasks at once, and you may use at most 20.25" in refusal(tenant, user, 1000.05).detail
    take(tenant, user, 20.25)
    assert refusal(tenant, user).detail == "you used 20.25 of 20.25 cost of tasks today"
    bucket(tenant, BucketScope.TENANT, rate_per_second=0.123456, burst=1000.04)
    other = make_member(tenant)
    TokenBucket.objects.filter(scope=BucketScope.USER).delete()
    assert "may use at most 1000.04 at once" in refusal(tenant, other, 1000.05).detail
    take(tenant, other, 1000.04)
    assert "may use 0.123456 cost of tasks per second, and at most 1000.04" in refusal(tenant, other).detail


def test_refund_gives_tokens_and_budget_back(tenant, user):
    """A67"""
    bucket(tenant, burst=2.0, rate_per_second=0.0, daily_budget=2.0)
    assert take(tenant, user, cost=2.0)
    buckets.refund(tenant.pk, user.pk, BucketUse.TASKS, 2.0, taken_at=NOON, now=NOON)
    assert [take(tenant, user) for _ in range(3)] == [True, True, False]


def test_refund_never_fills_a_bucket_beyond_its_burst(tenant, user):
    bucket(tenant, burst=2.0, rate_per_second=0.0)
    assert take(tenant, user)
    buckets.refund(tenant.pk, user.pk, BucketUse.TASKS, 50.0, taken_at=NOON, now=NOON)
    assert [take(tenant, user) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("zone", "before", "seconds"),
    [
        ("UTC", datetime(2030, 6, 1, 23, 59, 0, tzinfo=UTC), 60),
        ("Asia/Tokyo", datetime(2030, 6, 1, 14, 59, 0, tzinfo=UTC), 60),
        # The clocks of Berlin go back by an hour at 01:00 UTC: this day has 25 hours.
        ("Europe/Berlin", datetime(2030, 10, 26, 22, 0, 0, tzinfo=UTC), 25 * 3600),
        # And forward at 01:00 UTC: 23 hours.
        ("Europe/Berlin", datetime(2030, 3, 30, 23, 0, 0, tzinfo=UTC), 23 * 3600),
    ],
)
def test_day_of_a_budget_ends_at_midnight_of_the_tenant(user, zone, before, seconds):
    """A67"""
    tenant = make_tenant("tokyo", time_zone=zone)
    bucket(tenant, burst=100.0, rate_per_second=100.0, daily_budget=3.0)
    assert [take(tenant, user, at=before) for _ in range(4)] == [True, True, True, False]
    assert refusal(tenant, user, at=before).retry_after == seconds
    assert not take(tenant, user, at=before, after=seconds - 1)
    assert take(tenant, user, at=before, after=seconds)


def test_refund_of_yesterday_leaves_the_budget_of_today(tenant, user):
    bucket(tenant, burst=100.0, rate_per_second=100.0, daily_budget=3.0)
    assert take(tenant, user, cost=3.0, at=NOON + timedelta(days=1))
    buckets.refund(tenant.pk, user.pk, BucketUse.TASKS, 3.0, taken_at=NOON, now=NOON + timedelta(days=1))
    assert not take(tenant, user, at=NOON + timedelta(days=1))


def test_clock_that_goes_back_admits_nothing_twice(tenant, user):
    bucket(tenant, burst=2.0, rate_per_second=1.0)
    assert take(tenant, user, cost=2.0)
    assert not take(tenant, user, after=-100)
    assert not take(tenant, user, after=0.5)
    assert take(tenant, user, after=1)


def test_bucket_fills_again_after_the_clock_was_years_ahead(tenant, user):
    bucket(tenant, burst=2.0, rate_per_second=0.1)
    assert take(tenant, user, cost=2.0, at=NOON + timedelta(days=3650))
    assert [take(tenant, user) for _ in range(3)] == [True, True, False], "never more than the burst"
    assert not take(tenant, user, after=9)
    assert take(tenant, user, after=11)


@pytest.mark.django_db(transaction=True)
def test_concurrent_takes_never_exceed_the_burst():
    """A67"""
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    bucket(tenant, BucketScope.TENANT, burst=5.0, rate_per_second=0.0)
    bucket(tenant, BucketScope.USER, burst=100.0, rate_per_second=0.0)
    results = at_once(*[lambda: buckets.take(tenant.pk, user.pk, BucketUse.TASKS, 1.0)] * 12)
    assert sum(1 for result in results if isinstance(result, buckets.Room)) == 5
    assert sorted(BucketLevel.objects.values_list("level", flat=True)) == [0.0, 95.0]


@pytest.mark.django_db(transaction=True)
def test_rolled_back_take_restores_the_tokens():
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    bucket(tenant, burst=1.0, rate_per_second=0.0)
    with transaction.atomic():
        buckets.take(tenant.pk, user.pk, BucketUse.TASKS, 1.0)
        transaction.set_rollback(True)
    assert not connection.in_atomic_block
    assert buckets.take(tenant.pk, user.pk, BucketUse.TASKS, 1.0)


def test_admin_sets_the_time_zone_of_a_tenant(tenant):
    """Every zone that a tenant can have is one of PostgreSQL, which computes the days."""
    token = make_token(make_user(admin=True))
    assert call("PATCH", f"/api/v1/tenants/{tenant.name}", token, {"time_zone": "Asia/Tokyo"}).status_code == 200
    assert call("GET", f"/api/v1/tenants/{tenant.name}", token).json()["time_zone"] == "Asia/Tokyo"
    refused = call("PATCH", f"/api/v1/tenants/{tenant.name}", token, {"time_zone": "Mars/Olympus"})
    assert (refused.status_code, [error["field"] for error in refused.json()["errors"]]) == (400, ["time_zone"])
    known = {row["name"] for row in query("SELECT name FROM pg_timezone_names")}
    assert available_timezones() - {"localtime"} <= known
    assert call("PATCH", f"/api/v1/tenants/{tenant.name}", token, {"time_zone": "localtime"}).status_code == 400
