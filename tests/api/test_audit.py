"""Every write says who did it, by which way, and what was before and after."""

import pytest
from django.db import ProgrammingError, connection, transaction
from django.test import Client

from gpusched.lib.models import AuditEntry
from gpusched.protocol.states import Role, Scope
from tenants.models import ApiToken
from tenants.tenancy.tenants import set_member
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def admin():
    return make_user("root", admin=True)


def told(answer):
    return [{k: row[k] for k in ("actor", "via", "action", "subject", "before", "after")} for row in answer["items"]]


def test_quota_edit_by_a_token_is_audited(nlp, admin):
    token = make_token(admin)
    call("PUT", "/api/v1/tenants/nlp/quota", token, {"max_gpus": 4})
    [entry] = told(call("GET", "/api/v1/audit?action=quota", token).json())
    assert entry == {
        "actor": "root",
        "via": f"token {token.split('.')[0]}",
        "action": "quota.change",
        "subject": "quota nlp",
        "before": {"max_gpus": None, "version": 1},
        "after": {"max_gpus": 4, "version": 2},
    }


def test_edit_in_the_admin_is_audited(nlp, admin):
    browser = Client(headers={"User-Agent": "Firefox"})
    browser.force_login(admin)
    user = make_user("grace")
    fields = {"username": "ada", "is_active": "on", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    answer = browser.post(f"/admin/auth/user/{user.pk}/change/", fields)
    assert answer.status_code == 302, answer.content
    entry = AuditEntry.objects.get(action="admin.change")
    assert (entry.actor, entry.via, entry.agent, entry.subject) == ("root", "admin", "Firefox", "user ada")
    assert entry.before and entry.after
    assert (entry.before["username"], entry.after["username"]) == ("grace", "ada")


def test_new_role_is_audited_once(nlp):
    joan = make_user("joan")
    for role in (Role.MEMBER, Role.MEMBER, Role.OWNER):
        set_member(nlp, joan, role)
    stored = AuditEntry.objects.filter(action="member.set", subject="joan in nlp").order_by("pk")
    assert [(row.before, row.after) for row in stored] == [
        (None, {"role": "member"}),
        ({"role": "member"}, {"role": "owner"}),
    ]


def test_new_password_is_audited_without_the_password(admin):
    """A56"""
    browser = Client()
    browser.force_login(admin)
    user = make_user("grace")
    word = "a new long sentence 7"
    fields = {"password1": word, "password2": word, "usable_password": "true"}
    assert browser.post(f"/admin/auth/user/{user.pk}/password/", fields).status_code == 302
    entry = AuditEntry.objects.get(subject="user grace")
    assert entry.after
    assert (entry.action, set(entry.after.values())) == ("admin.change", {"(not shown)"})


def test_deletion_in_the_admin_is_audited_with_its_values(admin):
    browser = Client()
    browser.force_login(admin)
    user = make_user("grace")
    assert browser.post(f"/admin/auth/user/{user.pk}/delete/", {"post": "yes"}).status_code == 302
    entry = AuditEntry.objects.get(action="admin.delete")
    assert entry.before
    assert (entry.before["username"], entry.before["password"], entry.after) == ("grace", "(not shown)", None)


def test_token_created_on_the_page_is_audited(nlp):
    browser = Client()
    browser.force_login(user := make_member(nlp, name="grace"))
    browser.post("/tokens/", {"name": "laptop", "scopes": ["read"], "expires_in_days": "30"})
    entry = AuditEntry.objects.get(action="token.create", actor=user.username)
    assert entry.after
    assert (entry.via, entry.after["name"], entry.after["scopes"]) == ("page", "laptop", ["read"])
    token = ApiToken.objects.get(name="laptop")
    assert token.secret_hash not in str(entry.after)


def test_actor_of_a_request_does_not_leak_to_the_next(nlp, admin):
    """Threads serve one request after the other."""
    call("PUT", "/api/v1/tenants/nlp/quota", make_token(admin), {"max_gpus": 4})
    make_user("grace")
    call("POST", "/api/v1/login", None, {"username": "grace", "password": "correct horse battery"})
    latest = AuditEntry.objects.latest("id")
    assert (latest.actor, latest.via, latest.action) == ("grace", "password", "token.create")


def test_refused_or_rolled_back_write_leaves_no_entry(nlp, admin):
    count = AuditEntry.objects.count()
    token = make_token(admin)
    call("PUT", "/api/v1/tenants/nlp/quota?dry_run=true", token, {"max_gpus": 4})
    call("PUT", "/api/v1/tenants/nlp/quota", token, {"max_gpus": -1})
    assert AuditEntry.objects.count() == count + 1  # the token


def test_database_rejects_changes_of_the_audit_log(nlp):
    for sql in ("UPDATE lib_auditentry SET actor = 'x'", "DELETE FROM lib_auditentry"):
        with (
            pytest.raises(ProgrammingError, match="Cannot update or delete"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(sql)


def test_audit_is_paged_and_filtered(nlp, admin):
    token = make_token(admin)
    for n in range(1, 4):
        call("PUT", "/api/v1/tenants/nlp/quota", token, {"max_gpus": n})
    first = call("GET", "/api/v1/audit?subject=quota%20nlp&actor=root&limit=2", token).json()
    remaining = call("GET", f"/api/v1/audit?subject=quota%20nlp&limit=2&cursor={first['next_cursor']}", token).json()
    assert [row["after"]["max_gpus"] for row in first["items"] + remaining["items"]] == [3, 2, 1]
    assert remaining["next_cursor"] is None
    assert call("GET", "/api/v1/audit?action=quot", token).json()["items"] == []


def test_audit_needs_an_admin_with_the_scope(admin):
    assert call("GET", "/api/v1/audit", make_token(admin, Scope.READ)).status_code == 403
