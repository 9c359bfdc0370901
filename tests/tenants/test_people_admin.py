"""Django admin keeps the last admin and the last owner, as the API does."""

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpusched.protocol.states import Role
from tenants.models import Membership
from tests.factories import make_member, make_tenant, make_user, submit
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


def test_tenant_with_many_members_is_saved_without_their_lines(browser, monkeypatch):
    """Django refuses a form of more than 1,000 fields, and the lines of 2,000 members take 14 s."""
    tenant = make_tenant("nlp")
    member, *_ = (make_member(tenant) for _ in range(3))
    address, form = f"/admin/tenants/tenant/{tenant.pk}/change/", tenant_form(tenant, max_gpus=4)
    monkeypatch.setattr("tenants.admin.MAX_MEMBERS", 2)
    page = browser.get(address).content.decode()
    assert "3, too many for this page; edit them with the commands of gpusched member" in page
    assert "memberships-" not in page
    row = member.memberships.get()
    lines = {"TOTAL_FORMS": 1, "INITIAL_FORMS": 1, "0-id": row.pk, "0-user": member.pk, "0-tenant": tenant.pk}
    without = {name: value for name, value in form.items() if not name.startswith("memberships-")}
    assert browser.post(address, without).status_code == 302
    tenant.quota.refresh_from_db()
    assert tenant.quota.max_gpus == 4
    # The page was loaded when there were fewer members.
    form = {**tenant_form(tenant), **{f"memberships-{name}": value for name, value in lines.items()}}
    assert browser.post(address, {**form, "memberships-0-role": "owner"}).status_code == 302
    assert member.memberships.get().role == Role.OWNER


@pytest.mark.parametrize("path", ["auth/user", "tenants/tenant"])
def test_deletion_does_not_list_each_job(browser, path):
    """A page with 100,000 jobs takes 12 s."""
    tenant = make_tenant("nlp")
    user = make_member(tenant, name="kim")
    job = submit(user, tenant)
    kept = user if path == "auth/user" else tenant
    chosen = {"action": "delete_selected", "_selected_action": [kept.pk]}
    pages = [browser.post(f"/admin/{path}/", chosen)]
    pages += [browser.get(f"/admin/{path}/{kept.pk}/delete/")] if kept is user else []
    for page in (page.content.decode() for page in pages):
        assert f"the jobs of {kept}" in page
        assert f"job {job}" not in page
    browser.post(f"/admin/{path}/", {**chosen, "post": "yes"})
    assert type(kept).objects.filter(pk=kept.pk).exists()
