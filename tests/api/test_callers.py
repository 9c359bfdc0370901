"""Answers of every route to credentials of programs, revoked ones, and ones with fewer scopes (A08): the other columns of the
matrix (roles.py), each of which follows from it by a rule."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import URLResolver
from django.utils import timezone

from gpusched.protocol.states import Role, Scope
from tenants.auth import tokens
from tenants.models import ApiToken, Tenant
from tests.api.operations import Operation, Stage, operations
from tests.api.roles import DONE, WHO, expected
from tests.factories import make_member, make_token, make_user

pytestmark = pytest.mark.django_db
ALL = [Scope.READ, Scope.WRITE, Scope.ADMIN]


def is_open(operation):
    return WHO[operation.name] == "no token"


def as_anonymous(operation):
    """A caller without proof is anonymous, and gets a 401."""
    return expected("anonymous", operation)


def with_scope_read(operation):
    return expected("member", operation) if operation.method == "GET" or is_open(operation) else 403


def with_scope_write(operation):
    if operation.name == "POST /api/v1/tokens":
        return 400  # a caller cannot grant a scope that they lack
    return expected("member", operation) if operation.method != "GET" or is_open(operation) else 403


def without_scope_admin(operation):
    """It reads what a viewer of every tenant does, and acts in none of which its user is no member."""
    return expected("admin" if WHO[operation.name] == "its user" else "viewer", operation)


CREDENTIALS: dict[str, Callable[[Operation], int]] = {
    "node": as_anonymous,
    "join token": as_anonymous,
    "expired": as_anonymous,
    "revoked": as_anonymous,
    "switched off": as_anonymous,
    "wrong secret": as_anonymous,
    "read": with_scope_read,
    "write": with_scope_write,
    "admin without scope": without_scope_admin,
    "owner elsewhere": partial(expected, "stranger"),
    "admin in this tenant": partial(expected, "owner"),
    "admin in another tenant": partial(expected, "stranger"),
    "member in another tenant": partial(expected, "stranger"),
}


def credential(kind, stage):
    """The text of such a credential."""
    other = Tenant.objects.get(name="other")
    if kind == "node":
        return str(stage.agent.credential)
    if kind == "join token":
        from nodes.inventory.join import create_join_token

        return create_join_token(1, "test")[1]
    if kind in ("read", "write"):
        return make_token(stage.user, Scope(kind))
    if kind == "admin without scope":
        return make_token(stage.admin, Scope.READ, Scope.WRITE)
    if kind == "owner elsewhere":
        return make_token(make_member(other, Role.OWNER))
    if kind.endswith(" tenant"):
        user = stage.admin if kind.startswith("admin") else stage.user
        tenant = stage.tenant if "this" in kind else other
        return tokens.create_token(user.pk, "t", list(ALL), tenant_id=tenant.pk)[1]
    return _spoilt(kind, make_member(stage.tenant))


def _spoilt(kind, member):
    text = make_token(member)
    token = ApiToken.objects.filter(prefix=text.split(".")[0])
    if kind == "expired":
        token.update(expires_at=timezone.now() - timedelta(hours=1))
    elif kind == "revoked":
        tokens.revoke_token(token.get())
    elif kind == "switched off":
        User.objects.filter(pk=member.pk).update(is_active=False)
    else:
        text = text[:-1] + ("a" if text[-1] != "a" else "b")
    return text


# A walk takes seconds: those that are refused in the same lines as others are walked with the slow tests.
SLOW = ("join token", "wrong secret", "owner elsewhere", "admin in another tenant", "member in another tenant")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.e2e] if kind in SLOW else []) for kind in CREDENTIALS]
)
def test_every_route_answers_every_credential(kind):
    """A08: one walk over the whole matrix for each credential."""
    stage = Stage()
    token = credential(kind, stage)
    wrong = {}
    for operation in operations():
        with transaction.atomic():
            status = stage.do(operation, token=token).status_code
            transaction.set_rollback(True)
        if (DONE if status < 300 else status) != CREDENTIALS[kind](operation):
            wrong[operation.name] = f"{status}, not {CREDENTIALS[kind](operation)}"
    assert wrong == {}


def test_page_session_without_csrf_token_changes_nothing():
    """The API takes the page's session only with the CSRF token."""
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(make_user(admin=True))
    assert browser.get("/api/v1/me").status_code == 200
    answer = browser.post("/api/v1/tenants", b'{"name": "x"}', content_type="application/json")
    assert (answer.status_code, answer["Content-Type"]) == (403, "application/problem+json")


# Addresses outside of the API: the answer without a login.
OTHERS: dict[str, tuple[int, ...]] = {
    "/api/v1/openapi.json": (200,),
    "/api/v1/docs": (200,),
    "/api/v1/metrics": (200,),
    "/metrics": (200,),
    "/health": (200,),
    "/ready": (200, 503),
    "/agent/join": (405,),
    "/agent/sync": (405,),
    "/agent/logs": (405,),
    "/admin/": (302,),
    "/login/": (200,),
    "/logout/": (405,),
    "/mcp": (401,),
    "/v1/models": (401,),
    "/v1/models/x": (401,),
    "/v1/chat/completions": (401,),
    "/v1/completions": (401,),
    "/v1/embeddings": (401,),
    "/v1/x": (404,),
}


def test_every_other_address_is_intentionally_public_or_authenticates():
    """A08: pages send to the login; all else stands in the table above."""
    from gpusched import urls

    result = set(_addresses(urls.urlpatterns, "/"))
    for path in result:
        answer = Client().get(path)
        if path in OTHERS:
            assert answer.status_code in OTHERS[path], path
        else:
            assert answer.status_code == 405 or answer["Location"].startswith("/login/"), path
    assert set(OTHERS) <= result


def _addresses(patterns, prefix):
    for operation in patterns:
        path = prefix + re.sub(r"<id:\w+>", "1", re.sub(r"<(str|path):\w+>", "x", str(operation.pattern)))
        if not isinstance(operation, URLResolver) or path == "/admin/":
            yield path
        elif path != "/api/v1/":  # in the matrix
            yield from _addresses(operation.url_patterns, path)
