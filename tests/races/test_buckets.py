"""A take of tokens and the deletion of its bucket at the same time: one waits for the other, and none fails."""

import pytest

from tenants import bucket_limits, buckets
from tenants.models import BucketScope, BucketUse, TokenBucket
from tenants.models.buckets import BucketLevel
from tests.races.elsewhere import Elsewhere, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def bucket(tenant):
    return TokenBucket.objects.create(
        tenant=tenant, scope=BucketScope.USER, limits=BucketUse.JOBS, rate_per_second=1.0, burst=5.0, created_by="root"
    )


@pytest.mark.parametrize("is_first", [True, False], ids=["first take of the user", "later take"])
def test_delete_waits_for_a_take(tenant, user, bucket, is_first):
    if not is_first:
        buckets.take(tenant.pk, user.pk, BucketUse.JOBS, 1.0)
    taking = Elsewhere(lambda: buckets.take(tenant.pk, user.pk, BucketUse.JOBS, 1.0))
    assert taking.is_done.wait(20)
    deleting = Elsewhere(lambda: bucket_limits.delete(bucket.pk))
    wait_until_blocked(deleting)
    taking.may_commit.set()
    deleting.commit()
    taking.commit()
    assert (taking.error, deleting.error) == (None, None)
    assert not TokenBucket.objects.exists()
    assert not BucketLevel.objects.exists()


def test_take_during_a_delete_is_not_limited(tenant, user, bucket):
    deleting = Elsewhere(lambda: bucket_limits.delete(bucket.pk))
    assert deleting.is_done.wait(20)
    taking = Elsewhere(lambda: buckets.take(tenant.pk, user.pk, BucketUse.JOBS, 1.0))
    wait_until_blocked(taking)
    deleting.commit()
    assert taking.is_done.wait(20)
    taking.commit()
    assert (taking.error, deleting.error) == (None, None)
    assert not BucketLevel.objects.exists()
