"""Members of a tenant through REST: owners add, change and remove them, and one owner who can act always stays."""

from dataclasses import replace

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User

from gpusched.lib.db.sql import execute
from gpusched.protocol.states import Role
from tenants.people import users
from tenants.tenancy import tenants
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db
PATH = "/api/v1/tenants/nlp/members"


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def owner(nlp):
    return make_token(make_member(nlp, Role.OWNER, "olga"))


def refused(answer):
    return answer.status_code, answer.json()["code"]


def listed(token):
    return [(row["user"], row["role"], row["kind"]) for row in call("GET", PATH, token).json()["items"]]


def test_owner_adds_changes_and_removes_members(nlp, owner):
    kim = make_token(make_user("kim"))
    assert call("GET", PATH, kim).status_code == 404
    member = call("POST", PATH, owner, {"user": "kim"})
    assert (member.status_code, member.json()) == (
        201,
        {"user": "kim", "role": "member", "kind": "person", "is_active": True},
    )
    assert call("POST", "/api/v1/jobs", kim, {"command": ["x"]}).status_code == 201
    assert call("PATCH", f"{PATH}/kim", owner, {"role": "viewer"}).json()["role"] == "viewer"
    assert call("POST", "/api/v1/jobs", kim, {"command": ["x"]}).status_code == 403
    assert listed(kim) == [("olga", "owner", "person"), ("kim", "viewer", "person")]
    assert call("DELETE", f"{PATH}/kim", owner).status_code == 204
    assert call("GET", PATH, kim).status_code == 404


def test_jobs_of_removed_members_continue(nlp, owner):
    job = submit(make_member(nlp, name="kim"), nlp)
    call("DELETE", f"{PATH}/kim", owner)
    assert call("GET", f"/api/v1/jobs/{job}", owner).json()["state"] == "pending"


def test_token_limited_to_the_tenant_reaches_nothing_after_removal(nlp, owner):
    kim = make_token(make_member(nlp, name="kim"), tenant=nlp)
    assert call("GET", PATH, kim).status_code == 200
    call("DELETE", f"{PATH}/kim", owner)
    assert call("GET", PATH, kim).status_code == 404


def test_name_with_a_slash_is_reached(nlp, owner):
    """Names come from an identity provider, too."""
    tenants.set_member(nlp, User.objects.create_user("acme/kim"), Role.MEMBER)
    assert call("PATCH", f"{PATH}/acme%2Fkim", owner, {"role": "viewer"}).json()["user"] == "acme/kim"
    admin = make_token(make_user(admin=True))
    assert call("POST", "/api/v1/users/acme%2Fkim/disable", admin).json()["username"] == "acme/kim"


@pytest.mark.parametrize("name", ["nobody", "gone", "ci@other", ""])
def test_only_users_who_can_log_in_are_added(owner, name):
    """An owner cannot distinguish them from unknown users."""
    users.disable(make_user("gone"))
    other = make_token(make_member(make_tenant("other"), Role.OWNER))
    call("POST", "/api/v1/tenants/other/service-tokens", other, {"name": "ci"})
    answer = call("POST", PATH, owner, {"user": name})
    assert answer.status_code == 404
    assert answer.json()["detail"] == f"there is no user '{name}', or you may not see it"


def test_member_is_not_added_twice(nlp, owner):
    make_member(nlp, name="kim")
    assert refused(call("POST", PATH, owner, {"user": "kim", "role": "owner"})) == (409, "already_member")
    assert ("kim", "member", "person") in listed(owner)


@pytest.mark.parametrize(("method", "body"), [("PATCH", {"role": "owner"}), ("DELETE", None)])
def test_unknown_member_is_404(owner, method, body):
    make_user("kim")
    for name in ("kim", "nobody", "%00"):
        assert call(method, f"{PATH}/{name}", owner, body).status_code == 404


@pytest.mark.parametrize("body", [{"user": "kim", "role": "king"}, {"user": "a\x00"}, {}, {"user": 1}])
def test_bad_fields_are_rejected(owner, body):
    assert call("POST", PATH, owner, body).status_code == 400


class TestLastOwner:
    def test_last_owner_stays_whoever_asks(self, nlp, owner):
        for token in (owner, make_token(make_user(admin=True))):
            assert refused(call("DELETE", f"{PATH}/olga", token)) == (409, "last_owner")
            assert refused(call("PATCH", f"{PATH}/olga", token, {"role": "member"})) == (409, "last_owner")
        assert call("PATCH", f"{PATH}/olga", owner, {"role": "owner"}).status_code == 200

    def test_disabled_owner_does_not_count(self, nlp, owner):
        users.disable(make_member(nlp, Role.OWNER, "gone"))
        assert refused(call("DELETE", f"{PATH}/olga", owner)) == (409, "last_owner")
        assert call("DELETE", f"{PATH}/gone", owner).status_code == 204

    def test_one_of_two_owners_can_leave(self, nlp, owner):
        make_member(nlp, Role.OWNER, "kim")
        assert call("DELETE", f"{PATH}/olga", owner).status_code == 204
        assert call("GET", PATH, owner).status_code == 404


@pytest.mark.parametrize(("method", "body"), [("PATCH", {"role": "viewer"}), ("DELETE", None)])
def test_role_of_a_service_account_comes_with_its_tokens(owner, method, body):
    call("POST", "/api/v1/tenants/nlp/service-tokens", owner, {"name": "ci"})
    assert ("ci@nlp", "member", "service") in listed(owner)
    assert refused(call(method, f"{PATH}/ci@nlp", owner, body)) == (409, "service_account")


@pytest.fixture
def provider(monkeypatch):
    """A provider whose groups decide on nlp and on admins, with kim's account bound to it."""
    kim = make_user("kim")
    kim.set_unusable_password()
    kim.save()
    monkeypatch.setattr(settings, "ENV", replace(settings.ENV, oidc_groups="ml=nlp:member, ops=admin"))
    monkeypatch.setattr(apps, "is_installed", lambda name: name == "allauth.socialaccount")
    execute("CREATE TEMPORARY TABLE socialaccount_socialaccount (user_id int) ON COMMIT DROP")
    execute("INSERT INTO socialaccount_socialaccount VALUES (%s)", [kim.pk])
    return kim


class TestSingleSignOn:
    def test_roles_from_groups_are_not_edited_by_hand(self, nlp, owner, provider):
        assert refused(call("POST", PATH, owner, {"user": "kim"})) == (409, "managed_by_provider")
        tenants.set_member(nlp, provider, Role.MEMBER)
        for method, body in (("PATCH", {"role": "viewer"}), ("DELETE", None)):
            assert refused(call(method, f"{PATH}/kim", owner, body)) == (409, "managed_by_provider")
        assert call("POST", PATH, owner, {"user": make_user("local").username}).status_code == 201

    def test_members_of_other_tenants_are_edited_by_hand(self, provider):
        token = make_token(make_member(make_tenant("other"), Role.OWNER))
        assert call("POST", "/api/v1/tenants/other/members", token, {"user": "kim"}).status_code == 201

    def test_member_without_a_password_here_gets_none(self, provider):
        admin = make_token(make_user(admin=True))
        assert call("GET", "/api/v1/users/kim", admin).json()["login"] == "sso"
        assert refused(call("POST", "/api/v1/users/kim/reset-password", admin)) == (409, "no_password_login")
        assert refused(call("PATCH", "/api/v1/users/kim", admin, {"is_admin": True})) == (409, "managed_by_provider")

    def test_name_without_password_login_gets_no_password(self, monkeypatch):
        admin = make_token(make_user(admin=True))
        make_user("lin")
        monkeypatch.setattr(settings, "ENV", replace(settings.ENV, password_login_only_for="root"))
        assert refused(call("POST", "/api/v1/users/lin/reset-password", admin)) == (409, "no_password_login")
