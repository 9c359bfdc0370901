"""Two admins have one object open in Django admin: the second to save restores nothing that the first has changed."""

from html.parser import HTMLParser

import pytest
from django.test import Client
from django.utils import timezone

from gpusched.protocol.states import Role
from scheduling.models import SchedulingPolicy
from tenants.auth.tokens import create_token
from tenants.billing import budgets
from tenants.models import ApiToken, Budget, TokenBucket
from tests.factories import make_member, make_tenant, make_user

pytestmark = pytest.mark.django_db


class Fields(HTMLParser):
    """Collect what a browser sends of the page's forms."""

    def __init__(self):
        super().__init__()
        self.sent = {}
        self.select = ""

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        name = attributes.get("name") or ""
        if tag == "select":
            self.select = name
        elif tag == "option" and "selected" in attributes:
            self.sent[self.select] = attributes["value"]
        elif tag == "textarea":
            self.sent[name] = "{}"
        elif tag == "input" and (attributes.get("type") != "checkbox" or "checked" in attributes):
            self.sent[name] = attributes.get("value") or ("on" if "checked" in attributes else "")


@pytest.fixture
def browser():
    client = Client()
    client.force_login(make_user("root", admin=True))
    return client


def shown(browser, address):
    """Return the fields that the page sends if only its button is pressed."""
    fields = Fields()
    fields.feed(browser.get(address).content.decode())
    return {name: text for name, text in fields.sent.items() if not name.startswith("_") and "__prefix__" not in name}


def user():
    return make_user("kim", admin=True), {"is_active": False, "is_superuser": False}, {"email": "kim@example.org"}


def tenant():
    return make_tenant("nlp"), {"tier": "opportunistic"}, {"weight": "2"}


def token():
    create_token(make_user("kim").pk, "scene", ["read"])
    return (
        ApiToken.objects.get(),
        {"revoked_at": timezone.now()},
        {"expires_at_0": "2030-01-01", "expires_at_1": "00:00"},
    )


def bucket():
    row = TokenBucket.objects.create(
        tenant=make_tenant("nlp"), scope="user", limits="tasks", rate_per_second=5, burst=50
    )
    return row, {"rate_per_second": 1}, {"burst": "60"}


def budget():
    budgets.change(make_tenant("nlp").pk, {"soft_gpu_hours": 1, "hard_gpu_hours": 10, "days": None}, actor="root")
    return Budget.objects.get(), {"hard_gpu_hours": 5}, {"soft_gpu_hours": "2"}


@pytest.mark.parametrize("make", [user, tenant, token, bucket, budget])
def test_edit_of_an_outdated_page_is_rejected(browser, make):
    row, meanwhile, edit = make()
    address = f"/admin/{row._meta.app_label}/{row._meta.model_name}/{row.pk}/change/"
    outdated = shown(browser, address)
    type(row).objects.filter(pk=row.pk).update(**meanwhile)
    answer = browser.post(address, {**outdated, **edit})
    assert (answer.status_code, "was changed meanwhile" in answer.content.decode()) == (200, True)
    row.refresh_from_db()
    assert {name: getattr(row, name) for name in meanwhile} == meanwhile
    assert browser.post(address, {**shown(browser, address), **edit}).status_code == 302


def test_outdated_page_of_a_tenant_restores_no_role(browser):
    nlp = make_tenant("nlp")
    make_member(nlp, Role.OWNER, "olga")
    kim = make_member(nlp, Role.OWNER, "kim").memberships.get()
    address = f"/admin/tenants/tenant/{nlp.pk}/change/"
    outdated = shown(browser, address)
    kim.role = Role.VIEWER
    kim.save()
    answer = browser.post(address, {**outdated, "weight": "2"})
    assert "this membership was changed meanwhile" in answer.content.decode()
    kim.refresh_from_db()
    assert kim.role == Role.VIEWER
    assert browser.post(address, {**shown(browser, address), "weight": "2"}).status_code == 302


def test_outdated_page_of_the_policy_restores_no_setting(browser):
    browser.get("/admin/scheduling/schedulingpolicy/")
    address = "/admin/scheduling/schedulingpolicy/1/change/"
    outdated = shown(browser, address)
    for edit, status in (({"online_percent": "20"}, 302), ({"min_runtime_seconds": "60"}, 200)):
        assert browser.post(address, {**outdated, **edit}).status_code == status
    row = SchedulingPolicy.objects.get()
    assert (row.online_percent, row.min_runtime_seconds) == (20, 600)
