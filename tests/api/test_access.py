"""Role × resource × verb as a matrix, and no way to learn that something of another tenant exists (A08). For other
credentials see test_callers.py."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from django.test import Client

from gpusched.protocol.states import Role, Scope
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db

CALLERS = ("anonymous", "stranger", "viewer", "member", "owner", "admin")

# (method, path, body) → the status that each caller gets, in the order of CALLERS. {own} is a job of the member's.
MATRIX = {
    ("GET", "/api/v1/jobs"): (401, 200, 200, 200, 200, 200),
    ("POST", "/api/v1/jobs"): (401, 404, 403, 201, 201, 201),
    ("POST", "/api/v1/jobs/bulk"): (401, 404, 403, 201, 201, 201),
    ("POST", "/api/v1/jobs/simulate"): (401, 404, 403, 200, 200, 200),
    ("GET", "/api/v1/jobs/{own}"): (401, 404, 200, 200, 200, 200),
    ("GET", "/api/v1/jobs/{own}/explain"): (401, 404, 200, 200, 200, 200),
    ("GET", "/api/v1/jobs/{own}/events"): (401, 404, 200, 200, 200, 200),
    ("GET", "/api/v1/jobs/{own}/attempts"): (401, 404, 200, 200, 200, 200),
    ("GET", "/api/v1/jobs/{own}/logs"): (401, 404, 200, 200, 200, 200),
    ("POST", "/api/v1/jobs/{own}/cancel"): (401, 404, 403, 200, 200, 200),
    ("DELETE", "/api/v1/jobs/{own}"): (401, 404, 403, 200, 200, 200),
    ("POST", "/api/v1/jobs/{own}/hold"): (401, 404, 403, 200, 200, 200),
    ("POST", "/api/v1/jobs/{own}/release"): (401, 404, 403, 200, 200, 200),
    ("POST", "/api/v1/jobs/{own}/requeue"): (401, 404, 403, 200, 200, 200),
    ("POST", "/api/v1/jobs/{own}/retry"): (401, 404, 403, 409, 409, 409),  # it has not ended
    ("GET", "/api/v1/jobs/{own}/elements"): (401, 404, 200, 200, 200, 200),
    ("POST", "/api/v1/jobs/{own}/extend"): (401, 404, 403, 200, 200, 200),
    ("POST", "/api/v1/jobs/{own}/signal"): (401, 404, 403, 409, 409, 409),  # it does not run
    ("GET", "/api/v1/events"): (401, 200, 200, 200, 200, 200),
    ("GET", "/api/v1/tenants"): (401, 200, 200, 200, 200, 200),
    ("POST", "/api/v1/tenants"): (401, 403, 403, 403, 403, 201),
    ("GET", "/api/v1/tenants/nlp"): (401, 404, 200, 200, 200, 200),
    ("PATCH", "/api/v1/tenants/nlp"): (401, 404, 403, 403, 403, 200),
    ("GET", "/api/v1/tenants/nlp/quota"): (401, 404, 200, 200, 200, 200),
    ("PUT", "/api/v1/tenants/nlp/quota"): (401, 404, 403, 403, 403, 200),
    ("GET", "/api/v1/tenants/nlp/usage"): (401, 404, 200, 200, 200, 200),
    ("GET", "/api/v1/tenants/nlp/budget"): (401, 404, 200, 200, 200, 200),
    ("PUT", "/api/v1/tenants/nlp/budget"): (401, 404, 403, 403, 403, 200),
    ("GET", "/api/v1/tenants/nlp/secrets"): (401, 404, 403, 200, 200, 200),
    ("PUT", "/api/v1/tenants/nlp/secrets/wandb"): (401, 404, 403, 403, 201, 201),
    ("DELETE", "/api/v1/tenants/nlp/secrets/wandb"): (401, 404, 403, 403, 404, 404),
    ("GET", "/api/v1/rates"): (401, 200, 200, 200, 200, 200),
    ("POST", "/api/v1/rates"): (401, 403, 403, 403, 403, 201),
    ("DELETE", "/api/v1/rates/999999"): (401, 403, 403, 403, 403, 404),
    ("GET", "/api/v1/nodes"): (401, 200, 200, 200, 200, 200),
    ("GET", "/api/v1/nodes/n1"): (401, 200, 200, 200, 200, 200),
    ("POST", "/api/v1/nodes/n1/cordon"): (401, 403, 403, 403, 403, 200),
    ("POST", "/api/v1/nodes/n1/uncordon"): (401, 403, 403, 403, 403, 200),
    ("POST", "/api/v1/nodes/n1/drain"): (401, 403, 403, 403, 403, 200),
    ("POST", "/api/v1/nodes/join-tokens"): (401, 403, 403, 403, 403, 201),
    ("GET", "/api/v1/gpus"): (401, 200, 200, 200, 200, 200),
    ("GET", "/api/v1/gpus/999999/samples"): (401, 404, 404, 404, 404, 404),
    ("POST", "/api/v1/gpus/999999/quarantine"): (401, 403, 403, 403, 403, 404),
    ("POST", "/api/v1/gpus/999999/clear"): (401, 403, 403, 403, 403, 404),
    ("POST", "/api/v1/gpus/999999/retire"): (401, 403, 403, 403, 403, 404),
    ("GET", "/api/v1/idle-exemptions"): (401, 403, 403, 403, 403, 200),
    ("POST", "/api/v1/idle-exemptions"): (401, 403, 403, 403, 403, 201),
    ("DELETE", "/api/v1/idle-exemptions/999999"): (401, 403, 403, 403, 403, 404),
    ("GET", "/api/v1/incidents"): (401, 403, 403, 403, 403, 200),
    ("GET", "/api/v1/queue"): (401, 200, 200, 200, 200, 200),
    ("GET", "/api/v1/scheduling/shares"): (401, 200, 200, 200, 200, 200),
    ("GET", "/api/v1/scheduling/cycles"): (401, 403, 403, 403, 403, 200),
    ("GET", "/api/v1/scheduling/policy"): (401, 200, 200, 200, 200, 200),
    ("PATCH", "/api/v1/scheduling/policy"): (401, 403, 403, 403, 403, 200),
    ("GET", "/api/v1/scheduling/policy/history"): (401, 403, 403, 403, 403, 200),
    ("GET", "/api/v1/cluster/status"): (401, 200, 200, 200, 200, 200),
    ("GET", "/api/v1/audit"): (401, 403, 403, 403, 403, 200),
    ("GET", "/api/v1/tenants/nlp/service-tokens"): (401, 404, 403, 403, 200, 200),
    ("POST", "/api/v1/tenants/nlp/service-tokens"): (401, 404, 403, 403, 201, 201),
    ("DELETE", "/api/v1/tenants/nlp/service-tokens/999999"): (401, 404, 403, 403, 404, 404),
    ("GET", "/api/v1/tokens"): (401, 200, 200, 200, 200, 200),
    ("POST", "/api/v1/tokens"): (401, 201, 201, 201, 201, 201),
    ("DELETE", "/api/v1/tokens/999999"): (401, 404, 404, 404, 404, 404),
    ("GET", "/api/v1/me"): (401, 200, 200, 200, 200, 200),
    ("GET", "/api/v1/health"): (200, 200, 200, 200, 200, 200),
    ("GET", "/health"): (200, 200, 200, 200, 200, 200),
}
BODIES = {
    ("POST", "/api/v1/jobs"): {"tenant": "nlp", "command": ["x"]},
    ("POST", "/api/v1/jobs/bulk"): {"jobs": [{"tenant": "nlp", "command": ["x"]}]},
    ("POST", "/api/v1/jobs/simulate"): {"tenant": "nlp", "command": ["x"]},
    ("POST", "/api/v1/jobs/{own}/extend"): {"max_runtime_minutes": 60},
    ("POST", "/api/v1/jobs/{own}/signal"): {"signal": "USR1"},
    ("POST", "/api/v1/tenants"): {"name": "new"},
    ("PATCH", "/api/v1/tenants/nlp"): {"weight": 2},
    ("PUT", "/api/v1/tenants/nlp/quota"): {"max_gpus": 4},
    ("POST", "/api/v1/idle-exemptions"): {"tenant": "nlp"},
    ("PUT", "/api/v1/tenants/nlp/budget"): {"hard_gpu_hours": 100},
    ("PUT", "/api/v1/tenants/nlp/secrets/wandb"): {"value": "x"},
    ("POST", "/api/v1/rates"): {"gpu_model": "A100", "price_per_gpu_hour": 2},
    ("POST", "/api/v1/tenants/nlp/service-tokens"): {"name": "ci"},
    ("POST", "/api/v1/tokens"): {"name": "t", "scopes": ["read"]},
}


@pytest.fixture
def nlp():
    return make_tenant("nlp")


@pytest.fixture
def member(nlp):
    return make_member(nlp)


def token_of(caller, nlp, member):
    if caller == "stranger":
        return make_token(make_member(make_tenant("other")))
    if caller == "admin":
        return make_token(make_user(admin=True))
    return make_token(member if caller == "member" else make_member(nlp, Role(caller)))


def call(method, path, token, body=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    raw = b"" if method == "GET" else msgspec.json.encode(body or {})
    return Client().generic(method, path, raw, content_type="application/json", headers=headers)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("method", "path"), list(MATRIX))
def test_what_each_role_may_do(method, path, caller, nlp, member):
    """A08: the generated matrix."""
    make_node(name="n1")
    own = submit(member, nlp)
    token = None if caller == "anonymous" else token_of(caller, nlp, member)

    response = call(method, path.format(own=own), token, BODIES.get((method, path)))

    assert response.status_code == MATRIX[method, path][CALLERS.index(caller)], response.content


@pytest.mark.parametrize(("method", "path"), [row for row in MATRIX if "{own}" in row[1]])
def test_a_job_is_its_colleagues_to_see_and_not_to_touch(method, path, nlp, member):
    """A08: what a viewer may do to a member's job is all that another member may."""
    own = submit(member, nlp)
    response = call(method, path.format(own=own), make_token(make_member(nlp)), BODIES.get((method, path)))
    assert response.status_code == MATRIX[method, path][CALLERS.index("viewer")], response.content


def test_every_endpoint_is_in_the_matrix():
    """A new endpoint, or a new verb of one, without its row here fails."""
    from gpusched.urls import api

    known = {(method, p.removeprefix("/api/v1/").replace("{own}", "1")) for method, p in MATRIX}
    there = {(method, p) for p in api for method in methods_of(p)}
    missing = {(method, p) for method, p in there if not any(m == method and p.resolve(path) for m, path in known)}
    assert {f"{method} {p.pattern}" for method, p in missing} == {"POST login", "GET ready"}


# `who` of an endpoint's documentation → the first of CALLERS that may.
LEAST = {
    "no token": "anonymous", "anybody": "stranger", "its user": "stranger", "viewer": "viewer", "member": "member",
    "own jobs: member, else owner": "member", "owner": "owner", "admin": "admin",
}  # fmt: skip


def test_the_documentation_says_who_may():
    """A08, A54: `who` of each endpoint is what the matrix has; that is what docs/reference/rest.md tells."""
    document = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
    for (method, path), statuses in MATRIX.items():
        wanted = path.replace("{own}", "1")
        found = sorted(document["paths"], key=lambda template: template.count("{"))
        template = next(t for t in found if re.fullmatch(re.sub(r"{\w+}", "[^/]+", t), wanted))
        who = document["paths"][template][method.lower()]["x-who"]
        first = CALLERS.index(LEAST[who])
        assert statuses[first] not in (401, 403), f"{method} {path}: {who} may not"
        # Lists of what a role sees are empty for strangers, and no secret.
        assert who in ("viewer", "no token") or statuses[first - 1] in (401, 403, 404), (
            f"{method} {path}: not only {who}"
        )


def methods_of(endpoint):
    """What it answers, as DRF says it."""
    return set(endpoint.callback.cls().allowed_methods) - {"OPTIONS", "HEAD"}


@pytest.mark.parametrize(("method", "path"), [row for row in MATRIX if "{own}" in row[1]])
def test_a_foreign_id_answers_like_an_unknown_one(method, path, nlp, member):
    """A08: byte for byte, but for the id and the request's own id."""
    foreign = submit(make_member(other := make_tenant("other")), other)
    token = make_token(member)
    answers = []
    for job_id in (foreign, 987654321):
        answer = call(method, path.format(own=job_id), token, BODIES.get((method, path)))
        assert answer.status_code == 404, answer.content
        told = answer.json()
        told.pop("request_id")
        answers.append(str(told).replace(f"job {job_id}", "job ID"))
    assert answers[0] == answers[1]


def test_lists_show_own_tenants_only(nlp, member):
    own = submit(member, nlp)
    submit(make_member(other := make_tenant("other")), other)
    token = make_token(member)
    assert [job["id"] for job in call("GET", "/api/v1/jobs", token).json()["items"]] == [own]
    assert [t["name"] for t in call("GET", "/api/v1/tenants", token).json()["items"]] == ["nlp"]
    queue = call("GET", "/api/v1/queue", token).json()
    assert [(item["job_id"], item["position"]) for item in queue["items"]] == [(own, 1)]
    assert queue["total"] == 2
    shares = call("GET", "/api/v1/scheduling/shares", token).json()["items"]
    assert [share["tenant"] for share in shares] == ["nlp"]


def test_asking_for_another_tenants_jobs_gives_an_empty_list(nlp, member):
    submit(make_member(other := make_tenant("other")), other)
    for name in ("other", "nowhere"):
        assert call("GET", f"/api/v1/jobs?tenant={name}", make_token(member)).json()["items"] == []


class TestTokens:
    def test_a_token_without_write_cannot_write(self, nlp, member):
        response = call("POST", "/api/v1/jobs", make_token(member, Scope.READ), {"command": ["x"]})
        assert (response.status_code, response.json()["code"]) == (403, "scope_missing")

    def test_an_admins_token_without_admin_scope_is_no_admin(self, nlp):
        token = make_token(make_user(admin=True), Scope.READ, Scope.WRITE)
        assert call("PUT", "/api/v1/tenants/nlp/quota", token, {"max_gpus": 1}).status_code == 403

    def test_a_revoked_token_is_no_token(self, nlp, member):
        token = make_token(member)
        [made] = call("GET", "/api/v1/tokens", token).json()["items"]
        assert call("DELETE", f"/api/v1/tokens/{made['id']}", token).status_code == 200
        assert call("GET", "/api/v1/me", token).status_code == 401

    def test_the_secret_is_not_stored(self, nlp, member):
        """A56"""
        from django.db import connection

        token = make_token(member)
        with connection.cursor() as cursor:
            cursor.execute("SELECT string_agg(t::text, ' ') FROM tenants_apitoken t")
            assert token.split(".")[1] not in cursor.fetchone()[0]

    def test_a_token_cannot_give_more_than_it_has(self, nlp, member):
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
    def test_a_hostile_header_is_401(self, header):
        assert Client().get("/api/v1/jobs", headers={"Authorization": header}).status_code == 401


def test_login_gives_a_token(nlp):
    user = make_user("grace")
    answer = call("POST", "/api/v1/login", None, {"username": "grace", "password": "correct horse battery"})
    assert answer.status_code == 201
    assert call("GET", "/api/v1/me", answer.json()["token"]).json()["user"] == user.username
    wrong = call("POST", "/api/v1/login", None, {"username": "grace", "password": "wrong"})
    assert wrong.status_code == 401
