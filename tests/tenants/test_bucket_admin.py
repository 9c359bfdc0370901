"""Token buckets in Django admin: the checks of the API, and the same audit entries."""

import pytest
from django.test import Client

from gpusched.lib.models import AuditEntry
from tenants.models import TokenBucket
from tests.factories import make_member, make_user

pytestmark = pytest.mark.django_db
LIST = "/admin/tenants/tokenbucket/"


@pytest.fixture
def browser():
    client = Client()
    client.force_login(make_user("root", admin=True))
    return client


def fields(tenant, **changes):
    values = {"tenant": tenant.pk, "scope": "user", "user": "", "limits": "tasks", "rate_per_second": 5, "burst": 50}
    return {**values, "daily_budget": "", **changes}


def entries():
    of_buckets = AuditEntry.objects.filter(subject__startswith="bucket").order_by("id")
    return list(of_buckets.values_list("actor", "via", "action"))


def test_bucket_is_added_changed_and_deleted_with_audit_entries(browser, tenant):
    assert browser.post(f"{LIST}add/", fields(tenant)).status_code == 302
    bucket = TokenBucket.objects.get()
    assert (bucket.tenant, bucket.user, bucket.burst, bucket.created_by) == (tenant, None, 50, "root")
    assert "nlp" in browser.get(LIST).content.decode()
    limits = {"rate_per_second": 1, "burst": 10, "daily_budget": 100}
    assert browser.post(f"{LIST}{bucket.pk}/change/", limits).status_code == 302
    bucket.refresh_from_db()
    assert (bucket.rate_per_second, bucket.burst, bucket.daily_budget, bucket.scope) == (1, 10, 100, "user")
    assert browser.post(f"{LIST}{bucket.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not TokenBucket.objects.exists()
    assert entries() == [("root", "admin", f"bucket.{verb}") for verb in ("create", "change", "delete")]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"scope": "tenant", "user": "ada"}, "applies only to the scope user"),
        ({}, "the tenant already has a bucket of this scope"),
        ({"limits": "jobs", "burst": 0}, "greater than or equal to 1"),
        ({"limits": "jobs", "rate_per_second": -1}, "greater than or equal to 0"),
        ({"limits": "jobs", "rate_per_second": "1e-310"}, "must be 0, or at least 1e-06"),
    ],
)
def test_admin_refuses_what_the_api_refuses(browser, tenant, changes, text):
    user = make_member(tenant, name="ada")
    assert browser.post(f"{LIST}add/", fields(tenant)).status_code == 302
    if "user" in changes:
        changes = {**changes, "user": user.pk}
    answer = browser.post(f"{LIST}add/", fields(tenant, **changes))
    assert (answer.status_code, text in answer.content.decode()) == (200, True)
    assert TokenBucket.objects.count() == 1


def test_members_cannot_open_the_page(tenant):
    client = Client()
    client.force_login(make_member(tenant))
    assert client.get(LIST).status_code == 302
