"""Endpoints in Django admin: their limits, with the checks of the API."""

import pytest
from django.test import Client

from gpusched.lib.models import AuditEntry
from serving.admin import LIMITS
from serving.endpoints import endpoints
from serving.models import Endpoint
from tests.factories import identity_for, make_member, make_tenant, make_user
from tests.tenants.test_outdated_edits import shown

pytestmark = pytest.mark.django_db
LIST = "/admin/serving/endpoint/"


@pytest.fixture
def browser():
    client = Client()
    client.force_login(make_user("root", admin=True))
    return client


@pytest.fixture
def endpoint():
    tenant = make_tenant("nlp")
    fields = {"name": "embed", "template": {"command": ["serve"]}, "max_replicas": 2}
    return endpoints.create(tenant.pk, fields, identity_for(make_member(tenant)))


def edit(browser, endpoint, **changes):
    values = {name: getattr(endpoint, name) for name in LIMITS}
    return browser.post(f"{LIST}{endpoint.pk}/change/", {**values, **changes})


def test_limits_are_changed_with_an_audit_entry(browser, endpoint):
    assert "embed" in browser.get(LIST).content.decode()
    assert edit(browser, endpoint, max_batch=32, max_replicas=4).status_code == 302
    changed = Endpoint.objects.get()
    assert (changed.max_batch, changed.max_replicas, changed.name, changed.version) == (32, 4, "embed", 2)
    entry = AuditEntry.objects.latest("id")
    assert (entry.actor, entry.action, entry.after) == (
        "root", "endpoint.change", {"max_batch": 32, "max_replicas": 4},
    )  # fmt: skip


def test_wrong_limits_are_refused(browser, endpoint):
    answer = edit(browser, endpoint, min_replicas=3)
    assert (answer.status_code, "must be at most max_replicas" in answer.content.decode()) == (200, True)
    assert Endpoint.objects.get().version == 1


def test_nothing_is_added_or_deleted(browser, endpoint):
    assert browser.get(f"{LIST}add/").status_code == 403
    assert browser.post(f"{LIST}{endpoint.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Endpoint.objects.exists()


def test_outdated_page_restores_no_limit(browser, endpoint):
    address = f"{LIST}{endpoint.pk}/change/"
    outdated = shown(browser, address)
    assert browser.post(address, {**outdated, "max_replicas": 1}).status_code == 302
    answer = browser.post(address, {**outdated, "max_batch": 3})
    assert "this endpoint was changed meanwhile" in answer.content.decode()
    assert Endpoint.objects.get().max_replicas == 1
