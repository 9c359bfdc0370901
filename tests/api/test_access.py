"""Role × resource × verb as a matrix, and no way to learn that something of another tenant exists (A08). For other
credentials see test_callers.py."""

import pytest
from django.db import transaction
from django.test import Client

from gpusched.protocol.states import Role, Scope
from tenants.tenancy.tenants import set_member
from tests.api.calls import call
from tests.api.operations import Stage, operations
from tests.api.roles import CALLERS, DONE, WHO, expected
from tests.factories import make_member, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def member(nlp):
    return make_member(nlp)


@pytest.mark.parametrize("caller", CALLERS)
def test_each_role_has_its_permissions(caller):
    """A08: the generated matrix: each operation on an existing object. Every change is rolled back."""
    stage = Stage()
    token = token_of(caller, stage)
    wrong = {}
    for operation in operations():
        with transaction.atomic():
            status = stage.do(operation, token=token).status_code
            transaction.set_rollback(True)
        if (DONE if status < 300 else status) != expected(caller, operation):
            wrong[operation.name] = f"{status}, not {expected(caller, operation)}"
    assert wrong == {}


def token_of(caller, stage):
    if caller == "anonymous":
        return ""
    if caller in ("member", "admin"):
        return stage.member if caller == "member" else stage.token
    if caller == "stranger":
        return make_token(make_member(make_tenant("elsewhere")))
    return make_token(make_member(stage.tenant, Role.MEMBER if caller == "colleague" else Role(caller)))


def test_documentation_lists_the_required_roles():
    """A08, A54: a new operation needs its line in the table; `who` is what docs/rest.md tells."""
    assert {operation.name: operation.who for operation in operations()} == WHO


def test_foreign_id_answers_like_an_unknown_one():
    """A08: byte for byte, but for the id and the request's own id."""
    stage = Stage()
    token = make_token(make_member(make_tenant("elsewhere")))
    for operation in operations():
        kind = next((kind for kind in ("job", "task") if f"{{{kind}_id}}" in operation.path), None)
        if kind is None:
            continue
        answers = []
        for number in (stage.ids(operation)[f"{kind}_id"], 987654321):
            path = operation.path.format(**{f"{kind}_id": number})
            answer = call(operation.method, path, token, stage.body(operation))
            assert answer.status_code == 404, (operation.name, answer.content)
            told = answer.json()
            told.pop("request_id")
            answers.append(str(told).replace(f"{kind} {number}", f"{kind} ID"))
        assert answers[0] == answers[1], operation.name


def test_lists_show_only_own_tenants(nlp, member):
    is_own = submit(member, nlp)
    submit(make_member(other := make_tenant("other")), other)
    token = make_token(member)
    assert [job["id"] for job in call("GET", "/api/v1/jobs", token).json()["items"]] == [is_own]
    assert [t["name"] for t in call("GET", "/api/v1/tenants", token).json()["items"]] == ["nlp"]
    queue = call("GET", "/api/v1/queue", token).json()
    assert [(item["job_id"], item["position"]) for item in queue["items"]] == [(is_own, 1)]
    assert queue["total"] == 2
    shares = call("GET", "/api/v1/scheduling/shares", token).json()["items"]
    assert [share["tenant"] for share in shares] == ["nlp"]


def test_another_tenants_jobs_answer_like_those_of_an_unknown_tenant(nlp, member):
    submit(make_member(other := make_tenant("other")), other)
    for name in ("other", "nowhere"):
        answer = call("GET", f"/api/v1/jobs?tenant={name}", make_token(member))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert answer.json()["error"] == f"there is no tenant '{name}', or you may not see it"


class TestTokens:
    def test_token_without_write_cannot_write(self, nlp, member):
        response = call("POST", "/api/v1/jobs", make_token(member, Scope.READ), {"command": ["x"]})
        assert (response.status_code, response.json()["code"]) == (403, "scope_missing")

    def test_admins_token_without_admin_scope_is_not_an_admins(self, nlp):
        token = make_token(make_user(admin=True), Scope.READ, Scope.WRITE)
        assert call("PUT", "/api/v1/tenants/nlp/quota", token, {"max_gpus": 1}).status_code == 403

    def test_admins_token_without_admin_scope_acts_as_a_member(self, nlp):
        """A08: anybody's things are an admin's with the scope alone."""
        set_member(nlp, admin := make_user(admin=True), Role.MEMBER)
        job, other = submit(admin, nlp), submit(make_member(nlp), nlp)
        token = make_token(admin, Scope.READ, Scope.WRITE)
        assert call("POST", f"/api/v1/jobs/{job}/cancel", token).status_code == 200
        refused = call("POST", f"/api/v1/jobs/{other}/cancel", token)
        assert (refused.status_code, refused.json()["next_step"]) == (403, "use an admin's token with scope admin")
        assert call("POST", f"/api/v1/jobs/{other}/hold", make_token(make_user(admin=True))).status_code == 200
        set_member(nlp, admin, Role.OWNER)
        assert call("POST", f"/api/v1/jobs/{other}/release", token).json()["code"] == "not_permitted"

    def test_admins_token_without_admin_scope_creates_no_owner_token(self, nlp):
        """A token limited to a tenant acts as an owner."""
        token = make_token(make_user(admin=True), Scope.READ, Scope.WRITE)
        assert call("POST", "/api/v1/tokens", token, {"name": "x", "tenant": "nlp"}).status_code == 403
        assert call("POST", "/api/v1/tokens", token, {"name": "x"}).status_code == 201

    def test_revoked_token_is_refused(self, nlp, member):
        token = make_token(member)
        [created] = call("GET", "/api/v1/tokens", token).json()["items"]
        assert call("DELETE", f"/api/v1/tokens/{created['id']}", token).status_code == 200
        assert call("GET", "/api/v1/me", token).status_code == 401

    def test_secret_is_not_stored(self, nlp, member):
        """A56"""
        from django.db import connection

        token = make_token(member)
        with connection.cursor() as cursor:
            cursor.execute("SELECT string_agg(t::text, ' ') FROM tenants_apitoken t")
            assert token.split(".")[1] not in cursor.fetchone()[0]

    def test_token_cannot_grant_more_than_it_has(self, nlp, member):
        token = make_token(member, Scope.READ, Scope.WRITE)
        answer = call("POST", "/api/v1/tokens", token, {"name": "x", "scopes": ["admin"]})
        assert answer.status_code == 400

    @pytest.mark.parametrize(
        "header",
        [
            "Bearer",
            "Bearer x",
            "Bearer x.y",
            "Bearer \x00.y",
            "Basic Zm9vOmJhcg==",
            "Bearer ü.ü",
            "Bearer " + "a" * 9000,
        ],
    )
    def test_hostile_header_is_401(self, header):
        assert Client().get("/api/v1/jobs", headers={"Authorization": header}).status_code == 401


def test_login_returns_a_token(nlp):
    user = make_user("grace")
    answer = call("POST", "/api/v1/login", None, {"username": "grace", "password": "correct horse battery"})
    assert answer.status_code == 201
    assert call("GET", "/api/v1/me", answer.json()["token"]).json()["user"] == user.username
    wrong = call("POST", "/api/v1/login", None, {"username": "grace", "password": "wrong"})
    assert wrong.status_code == 401
