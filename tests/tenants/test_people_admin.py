"""Django admin keeps the last admin and the last owner, as the API does."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpusched.protocol.states import Role
from tenants.models import Membership
from tests.factories import make_member, make_tenant, make_user
from tests.tenants.test_quota_admin import tenant_form

pytestmark = pytest.mark.django_db
DATES = {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}


@pytest.fixture
def root():
    return make_user("root", admin=True)


@pytest.fixture
def browser(root):
    client = Client()
    client.force_login(root)
    return client


@pytest.mark.parametrize("rights", [{"is_active": "on"}, {"is_superuser": "on"}])
def test_last_admin_stays_an_admin(root, browser, rights):
    address = f"/admin/auth/user/{root.pk}/change/"
    answer = browser.post(address, {"username": "root", "is_staff": "on", **rights, **DATES})
    assert "root is the only admin" in answer.content.decode()
    assert User.objects.filter(pk=root.pk, is_superuser=True, is_active=True).exists()
    other = make_user("other", admin=True)
    answer = browser.post(
        f"/admin/auth/user/{other.pk}/change/", {"username": "other", "is_staff": "on", **rights, **DATES}
    )
    assert answer.status_code == 302


def test_admin_cannot_be_deleted(root, browser):
    other = make_user("other", admin=True)
    assert browser.post(f"/admin/auth/user/{other.pk}/delete/", {"post": "yes"}).status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": [root.pk, other.pk], "post": "yes"}
    browser.post("/admin/auth/user/", chosen)
    assert User.objects.count() == 2


def test_last_owner_stays_an_owner(browser):
    tenant = make_tenant("nlp")
    olga, kim = make_member(tenant, Role.OWNER, "olga"), make_member(tenant, name="kim")

    def post(**roles):
        rows = {row.user.username: row for row in Membership.objects.filter(tenant=tenant).select_related("user")}
        form = {**tenant_form(tenant), "memberships-TOTAL_FORMS": len(rows), "memberships-INITIAL_FORMS": len(rows)}
        for number, user in enumerate((olga, kim)):
            role = roles[user.username]
            fields = {"id": rows[user.username].pk, "tenant": tenant.pk, "user": user.pk, "role": role or "owner"}
            fields |= {} if role else {"DELETE": "on"}
            form |= {f"memberships-{number}-{name}": value for name, value in fields.items()}
        return browser.post(f"/admin/tenants/tenant/{tenant.pk}/change/", form)

    for olgas in ("viewer", None):
        assert "needs an owner who can log in" in post(olga=olgas, kim="member").content.decode()
        assert Membership.objects.get(user=olga).role == Role.OWNER
    assert post(olga="viewer", kim="owner").status_code == 302
    assert Membership.objects.get(user=olga).role == Role.VIEWER
