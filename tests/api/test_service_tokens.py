"""Tokens of programs belong to no person; no token creates a stronger one (A08)."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpusched.lib.models import AuditEntry
from gpusched.protocol.states import Role, Scope
from jobs.models import Job
from tenants.auth import tokens
from tenants.models import ApiToken, Membership
from tenants.people import users
from tenants.tenancy import tenants
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
PATH = "/api/v1/tenants/nlp/service-tokens"


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def owner(nlp):
    return make_token(make_member(nlp, Role.OWNER))


def make(owner, **fields):
    answer = call("POST", PATH, owner, {"name": "ci", **fields})
    assert answer.status_code == 201, answer.content
    return answer.json()


def test_service_token_submits_for_its_tenant_and_sees_no_other(nlp, owner):
    make_tenant("other")
    token = make(owner)["token"]
    assert call("POST", "/api/v1/jobs", token, {"command": ["true"]}).status_code == 201
    assert Job.objects.get().user.username == "ci@nlp"
    assert [t["name"] for t in call("GET", "/api/v1/tenants", token).json()["items"]] == ["nlp"]
    assert call("POST", "/api/v1/jobs", token, {"tenant": "other", "command": ["true"]}).status_code == 404


def test_last_use_is_stored_to_the_minute(owner):
    """An unused token is recognized by its last use; a busy one is not written with each request."""
    created = make(owner)
    used = ApiToken.objects.filter(pk=created["id"])
    assert used.get().last_used_at is None
    call("GET", "/api/v1/me", created["token"])
    first = used.get().last_used_at
    assert first is not None
    call("GET", "/api/v1/me", created["token"])
    assert used.get().last_used_at == first
    used.update(last_used_at=first - timedelta(minutes=2))
    call("GET", "/api/v1/me", created["token"])
    assert (used.get().last_used_at or first - timedelta(1)) >= first


def test_service_token_outlives_its_creators_membership(nlp):
    maker = make_member(nlp, Role.OWNER)
    token = make(make_token(maker))["token"]
    maker.delete()
    assert call("GET", "/api/v1/me", token).json()["user"] == "ci@nlp"


def test_service_account_cannot_log_in(owner):
    make(owner)
    assert not User.objects.get(username="ci@nlp").has_usable_password()
    for password in ("", "!", "None"):
        body = {"username": "ci@nlp", "password": password}
        assert call("POST", "/api/v1/login", None, body).status_code == 401


def test_viewer_token_only_reads(owner):
    token = make(owner, role="viewer")["token"]
    assert call("GET", "/api/v1/jobs", token).status_code == 200
    assert call("POST", "/api/v1/jobs", token, {"command": ["true"]}).status_code == 403


def test_second_token_is_for_rotation_and_each_is_revoked_alone(owner):
    first, second = make(owner), make(owner)
    listed = call("GET", PATH, owner).json()["items"]
    assert [(row["id"], row["user"]) for row in listed] == [(second["id"], "ci@nlp"), (first["id"], "ci@nlp")]
    assert "token" not in listed[0]
    assert call("DELETE", f"{PATH}/{first['id']}", owner).json()["revoked_at"]
    assert [call("GET", "/api/v1/me", row["token"]).status_code for row in (first, second)] == [401, 200]


def test_second_token_keeps_the_role_of_the_first(nlp, owner):
    """Both are of one account: what one may do the other may."""
    first = make(owner, role="viewer")
    second = make(owner)
    assert Membership.objects.get(user__username="ci@nlp").role == "viewer"
    for row in (first, second):
        assert call("POST", "/api/v1/jobs", row["token"], {"command": ["true"]}).status_code == 403
    refused = call("POST", PATH, owner, {"name": "ci", "role": "member"})
    answer = refused.json()
    assert (refused.status_code, answer["code"], answer["errors"][0]["field"]) == (409, "role_differs", "role")
    assert "leave role out to keep viewer" in answer["next_step"]
    assert Membership.objects.get(user__username="ci@nlp").role == "viewer"
    for row in (first, second):
        call("DELETE", f"{PATH}/{row['id']}", owner)
    make(owner, role="member")
    assert Membership.objects.get(user__username="ci@nlp").role == "member", "no token in use was changed by it"


def test_name_of_a_person_is_not_used_for_a_service_account(nlp, owner):
    make_user("ci@nlp")
    answer = call("POST", PATH, owner, {"name": "ci"})
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert Membership.objects.filter(user__username="ci@nlp").count() == 0


def test_disabled_account_gets_no_token(owner):
    """Each use of it would be a 401."""
    make(owner)
    users.disable(User.objects.get(username="ci@nlp"))
    refused = call("POST", PATH, owner, {"name": "ci"})
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert ApiToken.objects.filter(user__username="ci@nlp").count() == 1


def test_owner_cannot_revoke_a_persons_token(nlp, owner):
    tokens.create_token(make_member(nlp).pk, "own", [Scope.READ], tenant_id=nlp.pk)
    token = ApiToken.objects.get(name="own")
    assert call("DELETE", f"{PATH}/{token.pk}", owner).status_code == 404
    assert call("GET", PATH, owner).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Ci"}, "name"),
        ({"name": "a" * 41}, "name"),
        ({"name": "ci", "scopes": ["admin"]}, "scopes"),
        ({"name": "ci", "scopes": []}, "scopes"),
        ({"name": "ci", "role": "owner"}, "role"),
        ({"name": "ci", "expires_in_days": 0}, "expires_in_days"),
    ],
)
def test_invalid_service_token_is_rejected_by_name(owner, body, field):
    answer = call("POST", PATH, owner, body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)
    assert not User.objects.filter(username__endswith="@nlp").exists()


def test_owner_cannot_grant_scopes_that_the_own_token_lacks(nlp):
    _, text = tokens.create_token(make_member(nlp, Role.OWNER).pk, "writes", [Scope.WRITE])
    answer = call("POST", PATH, text, {"name": "ci"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "scopes")
    assert call("POST", PATH, text, {"name": "ci", "scopes": ["write"]}).status_code == 201


class TestWhatWasMadeWithAToken:
    def test_created_token_is_revoked_with_its_creator(self, nlp):
        """A stolen token leaves nothing usable after its revocation."""
        token = make_token(make_member(nlp))
        body = {"name": "t", "scopes": ["read", "write"]}
        child = call("POST", "/api/v1/tokens", token, body).json()
        grandchild = call("POST", "/api/v1/tokens", child["token"], body).json()
        assert [child["made_by"], grandchild["made_by"]] == [ApiToken.objects.get(name="test").pk, child["id"]]
        sibling = call("POST", "/api/v1/tokens", token, body).json()
        answer = call("DELETE", f"/api/v1/tokens/{child['id']}", token).json()
        assert (answer["also_revoked"], bool(answer["revoked_at"])) == ([grandchild["id"]], True)
        used = [call("GET", "/api/v1/me", row).status_code for row in (child["token"], grandchild["token"])]
        assert (used, call("GET", "/api/v1/me", sibling["token"]).status_code) == ([401, 401], 200)
        stored = AuditEntry.objects.filter(action="token.revoke").values_list("subject", flat=True)
        assert set(stored) == {f"token {row['prefix']}" for row in (child, grandchild)}
        assert call("DELETE", f"/api/v1/tokens/{child['id']}", token).json()["also_revoked"] == []

    def test_token_created_by_a_service_token_is_revoked_with_it(self, owner):
        program = make(owner)
        created = call("POST", "/api/v1/tokens", program["token"], {"name": "t", "scopes": ["read"]}).json()
        assert call("DELETE", f"{PATH}/{program['id']}", owner).json()["also_revoked"] == [created["id"]]
        assert call("GET", "/api/v1/me", created["token"]).status_code == 401

    def test_revocation_in_the_admin_includes_created_tokens(self, nlp):
        token = make_token(make_member(nlp))
        created = call("POST", "/api/v1/tokens", token, {"name": "t", "scopes": ["read"]}).json()
        browser = Client()
        browser.force_login(make_user(admin=True))
        fields = {"expires_at_0": "", "expires_at_1": "", "revoked_at_0": "2026-01-01", "revoked_at_1": "00:00:00"}
        answer = browser.post(f"/admin/tenants/apitoken/{created['made_by']}/change/", fields)
        assert answer.status_code == 302, answer.content
        assert call("GET", "/api/v1/me", created["token"]).status_code == 401


def test_token_for_one_tenant_sees_and_revokes_only_tokens_for_it(nlp):
    user = make_member(nlp)
    other = make_tenant("other")
    tenants.set_member(other, user, Role.MEMBER)
    wide, _ = tokens.create_token(user.pk, "wide", [Scope.READ])
    foreign, _ = tokens.create_token(user.pk, "foreign", [Scope.READ], tenant_id=other.pk)
    _, text = tokens.create_token(user.pk, "limited", [Scope.READ, Scope.WRITE], tenant_id=nlp.pk)
    second, _ = tokens.create_token(user.pk, "second", [Scope.READ], tenant_id=nlp.pk)
    assert {row["name"] for row in call("GET", "/api/v1/tokens", text).json()["items"]} == {"limited", "second"}
    answers = [call("DELETE", f"/api/v1/tokens/{row.pk}", text).status_code for row in (wide, foreign, second)]
    assert answers == [404, 404, 200]
    assert len(call("GET", "/api/v1/tokens", make_token(user)).json()["items"]) == 5, "one without a tenant knows all"


class TestNoStrongerToken:
    def test_token_creates_none_with_more_scopes(self, nlp):
        _, text = tokens.create_token(make_member(nlp).pk, "writes", [Scope.WRITE])
        for scopes in (["read"], ["write", "admin"]):
            answer = call("POST", "/api/v1/tokens", text, {"name": "x", "scopes": scopes})
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "scopes")

    def test_token_creates_none_with_a_longer_lifetime(self, nlp):
        soon = timezone.now() + timedelta(hours=1)
        _, text = tokens.create_token(make_member(nlp).pk, "short", [Scope.READ, Scope.WRITE], expires_at=soon)
        for days in (90, None):
            call("POST", "/api/v1/tokens", text, {"name": f"for {days}", "scopes": ["read"], "expires_in_days": days})
            assert ApiToken.objects.get(name=f"for {days}").expires_at == soon

    def test_token_creates_none_for_other_tenants(self, nlp):
        """Not even when its user has left the only tenant that it was for."""
        user = make_member(other := make_tenant("other"))
        _, text = tokens.create_token(user.pk, "limited", [Scope.READ, Scope.WRITE], tenant_id=nlp.pk)
        call("POST", "/api/v1/tokens", text, {"name": "wide", "scopes": ["read"]})
        assert ApiToken.objects.get(name="wide").tenant == nlp
        assert call("POST", "/api/v1/tokens", text, {"name": "x", "tenant": other.name}).status_code == 404

    def test_user_can_create_any_token_on_the_page(self, nlp):
        browser = Client()
        browser.force_login(make_member(nlp))
        browser.post("/tokens/", {"name": "laptop", "scopes": ["read"], "expires_in_days": ""})
        assert ApiToken.objects.get(name="laptop").expires_at is None
