"""Accounts through REST: create, change, disable, enable, reset; the last admin is protected."""

from datetime import timedelta

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpusched.lib.db.sql import query
from gpusched.lib.models import AuditEntry
from gpusched.protocol.states import Role, Scope
from tenants.auth.page_access import Session, access_of
from tenants.models import OneTimePassword
from tenants.people import users
from tenants.tenancy import tenants
from tests.api.calls import call
from tests.api.operations import PASSWORD
from tests.factories import make_member, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
NEW = "another horse battery"


def create(admin, **fields):
    answer = call("POST", "/api/v1/users", admin, {"username": "kim", **fields})
    assert answer.status_code == 201, answer.content
    return answer.json()


def log_in(password, username="kim", **fields):
    return call("POST", "/api/v1/login", None, {"username": username, "password": password, **fields})


def refused(answer):
    return answer.status_code, answer.json()["code"]


class TestCreate:
    def test_new_account_has_the_requested_fields(self, admin):
        created = create(admin, email="kim@example.com", is_admin=True)
        represented = call("GET", "/api/v1/users/kim", admin).json()
        assert (represented["email"], represented["is_admin"], represented["is_active"]) == (
            "kim@example.com",
            True,
            True,
        )
        assert (represented["login"], represented["kind"], represented["tenants"]) == (
            "one_time_password",
            "person",
            [],
        )
        assert {**created, "one_time_password": None} == {**represented, "one_time_password": None}

    def test_one_time_password_must_be_replaced_at_the_first_login(self, admin):
        one_time = create(admin)["one_time_password"]
        assert refused(log_in(one_time)) == (403, "password_change_required")
        assert refused(log_in(one_time, new_password="short")) == (400, "invalid")
        assert refused(log_in(one_time, new_password=one_time)) == (400, "invalid")
        assert log_in(one_time, new_password=NEW).status_code == 201
        assert log_in(one_time).status_code == 401
        assert log_in(NEW).status_code == 201
        assert call("GET", "/api/v1/users/kim", admin).json()["login"] == "password"

    @pytest.mark.parametrize("is_expired", [False, True])
    def test_one_time_password_stays_one_when_django_hashes_it_anew(self, admin, settings, is_expired, monkeypatch):
        """At the first login after an upgrade of Django, whose hashes become stronger."""
        one_time = create(admin)["one_time_password"]
        if is_expired:
            OneTimePassword.objects.update(expires_at=timezone.now())
        monkeypatch.setattr(PBKDF2PasswordHasher, "iterations", 10)
        settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher", *settings.PASSWORD_HASHERS]
        expected = (401, "not_authenticated") if is_expired else (403, "password_change_required")
        assert [refused(log_in(one_time)) for _ in range(3)] == [expected] * 3
        assert User.objects.get(username="kim").password.startswith("pbkdf2")

    def test_one_time_password_expires(self, admin):
        one_time = create(admin)["one_time_password"]
        OneTimePassword.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        assert log_in(one_time, new_password=NEW).status_code == 401

    def test_password_set_in_the_admin_is_not_a_one_time_password(self, admin):
        create(admin)
        user = User.objects.get(username="kim")
        user.set_password(NEW)
        user.save()
        assert log_in(NEW).status_code == 201

    def test_given_password_is_valid_at_once(self, admin):
        assert create(admin, password=NEW)["one_time_password"] is None
        assert log_in(NEW).status_code == 201

    def test_account_for_single_sign_on_has_no_password(self, admin):
        created = create(admin, login="sso")
        assert (created["one_time_password"], created["login"]) == (None, "none")
        assert not User.objects.get(username="kim").has_usable_password()

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"username": ""}, "username"),
            ({"username": "a/b"}, "username"),
            ({"username": ".."}, "username"),
            ({"username": "x" * 151}, "username"),
            ({"username": "a\x00"}, "username"),
            ({"email": "nobody"}, "email"),
            ({"password": "short"}, "password"),
            ({"password": "x\x00" * 10}, "password"),
            ({"password": "x" * 2000}, "password"),
            ({"password": NEW, "login": "sso"}, "password"),
        ],
    )
    def test_bad_fields_are_rejected_by_name(self, admin, fields, field):
        answer = call("POST", "/api/v1/users", admin, {"username": "kim", **fields})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, field)
        assert not User.objects.filter(username="kim").exists()

    @pytest.mark.parametrize("name", ["kim", "KIM"])
    def test_name_that_differs_only_in_case_is_taken(self, admin, name):
        create(admin)
        assert refused(call("POST", "/api/v1/users", admin, {"username": name})) == (409, "name_taken")

    def test_dry_run_creates_nothing(self, admin):
        answer = call("POST", "/api/v1/users?dry_run=true", admin, {"username": "kim"})
        assert (answer.status_code, answer["Dry-Run"], answer.json()["one_time_password"]) == (200, "true", None)
        assert not User.objects.filter(username="kim").exists()


def test_list_is_paged_and_filtered(admin):
    tenant = make_tenant("nlp")
    make_member(tenant, Role.OWNER, "ada")
    call("POST", "/api/v1/tenants/nlp/service-tokens", admin, {"name": "ci"})
    users.disable(make_user("gone"))

    def names(query=""):
        return [user["username"] for user in call("GET", f"/api/v1/users{query}", admin).json()["items"]]

    assert names() == ["root", "ada", "ci@nlp", "gone"]
    assert (names("?kind=service"), names("?kind=person&active=true")) == (["ci@nlp"], ["root", "ada"])
    assert names("?active=false") == ["gone"]
    first = call("GET", "/api/v1/users?limit=2", admin).json()
    assert names(f"?limit=2&cursor={first['next_cursor']}") == ["ci@nlp", "gone"]
    assert call("GET", "/api/v1/users/ada", admin).json()["tenants"] == [{"name": "nlp", "role": "owner"}]
    assert call("GET", "/api/v1/users?kind=robot", admin).status_code == 400


def test_non_admin_cannot_distinguish_known_from_unknown_names():
    """A08"""
    token = make_token(make_member(make_tenant("nlp"), Role.OWNER, "ada"))
    for path in ("users", "users/ada", "users/nobody"):
        assert refused(call("GET", f"/api/v1/{path}", token)) == (403, "not_permitted")
    without_scope = make_token(make_user(admin=True), Scope.READ, Scope.WRITE)
    assert call("GET", "/api/v1/users/ada", without_scope).status_code == 403


class TestDisable:
    def test_logins_sessions_and_tokens_are_refused_until_it_is_enabled(self, admin):
        kim = make_user("kim")
        token, browser = make_token(kim), Client()
        browser.force_login(kim)
        assert call("POST", "/api/v1/users/kim/disable", admin).json()["is_active"] is False
        assert (call("GET", "/api/v1/me", token).status_code, log_in(PASSWORD).status_code) == (401, 401)
        assert browser.get("/api/v1/me").status_code in (401, 403)
        assert call("POST", "/api/v1/users/kim/enable", admin).json()["is_active"] is True
        assert (call("GET", "/api/v1/me", token).status_code, log_in(PASSWORD).status_code) == (200, 201)

    def test_answer_names_tenants_without_an_owner(self, admin):
        kim = make_member(make_tenant("nlp"), Role.OWNER, "kim")
        tenants.set_member(other := make_tenant("other"), kim, Role.OWNER)
        make_member(other, Role.OWNER)
        assert call("POST", "/api/v1/users/kim/disable", admin).json()["tenants_without_owner"] == ["nlp"]

    def test_repeated_disable_is_recorded_once(self, admin):
        make_user("kim")
        for _ in range(2):
            assert call("POST", "/api/v1/users/kim/disable", admin).status_code == 200
        assert AuditEntry.objects.filter(action="user.disable").count() == 1


class TestLastAdmin:
    def test_last_admin_can_neither_be_disabled_nor_demoted(self, admin):
        assert refused(call("POST", "/api/v1/users/root/disable", admin)) == (409, "last_admin")
        assert refused(call("PATCH", "/api/v1/users/root", admin, {"is_admin": False})) == (409, "last_admin")
        assert User.objects.filter(username="root", is_active=True, is_superuser=True).exists()

    def test_disabled_admin_does_not_count(self, admin):
        users.disable(make_user("other", admin=True))
        assert refused(call("PATCH", "/api/v1/users/root", admin, {"is_admin": False})) == (409, "last_admin")

    def test_one_of_two_admins_can_be_demoted(self, admin):
        make_user("other", admin=True)
        assert call("PATCH", "/api/v1/users/root", admin, {"is_admin": False}).json()["is_admin"] is False
        assert call("GET", "/api/v1/users", admin).status_code == 403

    def test_service_account_is_never_an_admin(self, admin):
        make_tenant("nlp")
        call("POST", "/api/v1/tenants/nlp/service-tokens", admin, {"name": "ci"})
        assert call("PATCH", "/api/v1/users/ci@nlp", admin, {"is_admin": True}).status_code == 400


class TestReset:
    def test_reset_ends_sessions_and_tokens(self, admin):
        kim = make_user("kim")
        token, browser = make_token(kim), Client()
        browser.force_login(kim)
        key = browser.session.session_key
        assert key is not None
        session = Session(kim.pk, key, kim.password)
        assert access_of([session])[0].is_allowed
        answer = call("POST", "/api/v1/users/kim/reset-password", admin).json()
        assert answer["revoked_tokens"] == 1
        assert call("GET", "/api/v1/me", token).status_code == 401
        assert browser.get("/api/v1/me").status_code in (401, 403)
        assert not access_of([session])[0].is_allowed
        assert log_in(PASSWORD).status_code == 401
        assert log_in(answer["one_time_password"], new_password=NEW).status_code == 201

    def test_tokens_can_be_kept(self, admin):
        token = make_token(make_user("kim"))
        body = {"keep_tokens": True, "password": NEW}
        answer = call("POST", "/api/v1/users/kim/reset-password", admin, body).json()
        assert (answer["revoked_tokens"], answer["one_time_password"]) == (0, None)
        assert (call("GET", "/api/v1/me", token).status_code, log_in(NEW).status_code) == (200, 201)

    def test_tokens_of_programs_stay(self, admin):
        kim = make_token(make_member(make_tenant("nlp"), Role.OWNER, "kim"))
        program = call("POST", "/api/v1/tenants/nlp/service-tokens", kim, {"name": "ci"}).json()["token"]
        call("POST", "/api/v1/users/kim/reset-password", admin)
        assert call("GET", "/api/v1/me", program).status_code == 200

    def test_own_password_needs_the_old_one(self, admin):
        assert refused(call("POST", "/api/v1/users/root/reset-password", admin)) == (409, "own_account")

    def test_service_account_has_no_password(self, admin):
        make_tenant("nlp")
        call("POST", "/api/v1/tenants/nlp/service-tokens", admin, {"name": "ci"})
        answer = call("POST", "/api/v1/users/ci@nlp/reset-password", admin)
        assert refused(answer) == (409, "no_password_login")

    def test_no_secret_is_stored_or_audited(self, admin):
        """A56"""
        one_time = create(admin)["one_time_password"]
        second = call("POST", "/api/v1/users/kim/reset-password", admin).json()["one_time_password"]
        call("POST", "/api/v1/users/kim/reset-password", admin, {"password": NEW})
        tables = query("SELECT table_name AS t FROM information_schema.tables WHERE table_schema = 'public'")
        for row in tables:
            [dump] = query(f"SELECT coalesce(string_agg(x::text, ' '), '') AS text FROM {row['t']} x")
            assert not any(secret in dump["text"] for secret in (one_time, second, NEW)), row["t"]

    def test_consecutive_resets_are_limited(self, admin, monkeypatch):
        monkeypatch.setattr("gpusched.lib.api.rate_limits.PASSWORDS_PER_MINUTE", 2)
        make_user("kim")
        paths = ["users/kim/reset-password"] * 2 + ["users/kim/reset-password?dry_run=true"]
        statuses = [call("POST", f"/api/v1/{path}", admin).status_code for path in paths]
        assert statuses == [200, 200, 429]


class TestOwnPassword:
    PATH = "/api/v1/me/password"

    def change(self, token, old=PASSWORD, new=NEW, query="", **fields):
        return call("PUT", self.PATH + query, token, {"old_password": old, "new_password": new, **fields})

    def test_old_password_is_needed(self):
        token = make_token(make_user("kim"))
        wrong = self.change(token, "wrong horse battery")
        assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "old_password")
        assert self.change(token).json()["status"] == "changed"
        assert (log_in(PASSWORD).status_code, log_in(NEW).status_code) == (401, 201)
        assert call("GET", "/api/v1/me", token).status_code == 200

    def test_repeated_change_changes_nothing(self):
        token = make_token(make_user("kim"))
        assert [self.change(token).json()["status"] for _ in range(2)] == ["changed", "unchanged"]

    @pytest.mark.parametrize("new", ["short", "password123", PASSWORD, "x\x00" * 10])
    def test_weak_or_same_password_is_rejected(self, new):
        answer = self.change(make_token(make_user("kim")), new=new)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "new_password")

    def test_tokens_are_revoked_on_request(self):
        token = make_token(make_user("kim"))
        assert self.change(token, revoke_tokens=True).json()["revoked_tokens"] == 1
        assert call("GET", "/api/v1/me", token).status_code == 401

    def test_present_session_stays_and_others_end(self):
        make_user("kim")
        mine, other = Client(), Client()
        for browser in (mine, other):
            browser.post("/login/", {"username": "kim", "password": PASSWORD})
        body = f'{{"old_password": "{PASSWORD}", "new_password": "{NEW}"}}'
        assert mine.put(self.PATH, body, content_type="application/json").status_code == 200
        assert mine.get("/api/v1/me").status_code == 200
        assert other.get("/api/v1/me").status_code in (401, 403)

    @pytest.mark.parametrize("query", ["", "?dry_run=true"])
    def test_guesses_count_as_logins(self, query):
        """A dry run is no way around the counters, which a rolled-back transaction would forget."""
        token = make_token(make_user("kim"))
        statuses = [self.change(token, "wrong horse battery", query=query).status_code for _ in range(11)]
        assert statuses == [400] * 10 + [429]
        assert log_in(PASSWORD).status_code == 429

    def test_dry_run_checks_and_changes_nothing(self):
        token = make_token(make_user("kim"))
        assert self.change(token, query="?dry_run=true").json()["status"] == "would_be_changed"
        assert self.change(token, new="short", query="?dry_run=true").status_code == 400
        assert log_in(PASSWORD).status_code == 201

    def test_service_account_has_no_password_to_change(self):
        owner = make_token(make_member(make_tenant("nlp"), Role.OWNER))
        program = call("POST", "/api/v1/tenants/nlp/service-tokens", owner, {"name": "ci"}).json()["token"]
        assert refused(self.change(program)) == (409, "no_password_login")


class TestLoginPage:
    def test_login_page_asks_for_a_new_password_after_a_one_time_password(self, admin):
        one_time = create(admin)["one_time_password"]
        browser, fields = Client(), {"username": "kim", "password": one_time}
        asked = browser.post("/login/", fields)
        assert asked.status_code == 200 and 'name="new_password"' in asked.content.decode()
        assert "sessionid" not in browser.cookies
        weak = browser.post("/login/", {**fields, "new_password": "short"})
        assert "too short" in weak.content.decode()
        assert browser.post("/login/", {**fields, "new_password": NEW}).status_code == 302
        assert browser.get("/api/v1/me").json()["user"] == "kim"

    def test_ordinary_login_asks_for_no_new_password(self):
        make_user("kim")
        assert "new_password" not in Client().get("/login/").content.decode()
        assert Client().post("/login/", {"username": "kim", "password": "wrong"}).status_code != 302
        assert Client().post("/login/", {"username": "kim", "password": PASSWORD}).status_code == 302

    def test_admin_site_refuses_a_one_time_password_with_the_next_step(self, admin):
        one_time = create(admin, is_admin=True)["one_time_password"]
        answer = Client().post("/admin/login/", {"username": "kim", "password": one_time})
        assert answer.status_code == 403 and "must set a new one" in answer.content.decode()
