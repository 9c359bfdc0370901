"""The OpenAI API up to the replica: models, errors in its form, limits, and the row of a request."""

import asyncio
import json

import pytest
from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from gpusched.lib.limits import MAX_OPENAI_BODY_BYTES
from gpusched.lib.web.deferred import DeferredResponse
from gpusched.protocol.states import Scope
from serving.models import Dispatcher, InferenceRequest
from serving.web import openai, serving
from tenants.models import Tenant
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def tenant():
    make_node(gpus=2)
    return make_tenant("nlp")


@pytest.fixture
def token(tenant):
    return make_token(make_member(tenant, name="ada"))


@pytest.fixture(autouse=True)
def lease(monkeypatch):
    number = Dispatcher.objects.create().pk
    monkeypatch.setattr(serving, "wait_for_lease", lambda seconds: number)
    return number


def create(token, name="chat", tenant="nlp", **fields):
    template = {"command": ["vllm"], "gpu_count": 1}
    body = {"name": name, "tenant": tenant, "template": template, "protocol": "openai", "port": 8000, **fields}
    answer = call("POST", "/api/v1/endpoints", token, body)
    assert answer.status_code == 201, answer.content


def ask(token, body=CHAT, path="/v1/chat/completions", **headers):
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    kind = headers.pop("kind", "application/json")
    return Client().post(path, data, content_type=kind, headers={"Authorization": f"Bearer {token}", **headers})


def error(answer):
    """Return the error, with the form that every client of this API expects."""
    assert answer["Content-Type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


def models(token):
    answer = call("GET", "/v1/models", token)
    assert answer.status_code == 200
    assert answer.json()["object"] == "list"
    return [model["id"] for model in answer.json()["data"]]


def test_request_has_a_row_without_its_content(token, lease):
    create(token, type="llm")
    answer = ask(token)
    assert isinstance(answer, DeferredResponse)
    row = InferenceRequest.objects.get()
    assert (row.state, row.cost, bytes(row.payload), row.dispatcher) == ("queued", 5.0, b"", lease)


def test_models_are_the_endpoints_of_this_protocol_that_the_caller_may_use(token, tenant):
    other = make_token(make_member(tenant, name="bob"))
    create(token)
    create(token, "drained")
    create(token, "private", allowed_users=["ada"])
    create(token, "batch", protocol="batch", port=None)
    call("POST", "/api/v1/endpoints/drained/drain", token)
    assert models(token) == ["chat", "private"]
    assert models(other) == ["chat"]
    assert call("GET", "/v1/models/chat", token).json()["owned_by"] == "nlp"
    Tenant.objects.update(archived_at=timezone.now())
    assert models(token) == []


def test_ambiguous_model_is_named_with_its_tenant(token, tenant):
    admin = make_token(make_user("root", admin=True))
    make_tenant("vision")
    create(admin)
    create(admin, tenant="vision")
    assert models(admin) == ["nlp/chat", "vision/chat"]
    answer = ask(admin)
    assert answer.status_code == 400
    assert "'nlp/chat' or 'vision/chat'" in error(answer)["message"]
    assert error(answer)["param"] == "model"
    assert isinstance(ask(admin, {**CHAT, "model": "vision/chat"}), DeferredResponse)
    assert InferenceRequest.objects.get().endpoint.tenant.name == "vision"


def test_requests_without_rights_are_refused(token, tenant):
    create(token, allowed_users=[])
    read_only = make_token(make_member(tenant, name="eve"), Scope.READ)
    stranger = make_token(make_member(make_tenant("other"), name="mallory"))
    bob = make_token(make_member(tenant, name="bob"))
    for caller, status, code, kind in (
        ("wrong.token", 401, "not_authenticated", "authentication_error"),
        (read_only, 403, "scope_missing", "permission_error"),
        (bob, 403, "not_permitted", "permission_error"),
        (stranger, 404, "model_not_found", "not_found_error"),
    ):
        answer = ask(caller)
        assert (answer.status_code, error(answer)["code"], error(answer)["type"]) == (status, code, kind)
    assert Client().post("/v1/embeddings", "{}", content_type="application/json").status_code == 401
    assert not InferenceRequest.objects.exists()


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "malformed_json", None),
        (b"", 400, "invalid", "model"),
        ({"messages": []}, 400, "invalid", "model"),
        ({"model": 3}, 400, "invalid", "model"),
        ([], 400, "invalid", ""),
        ({"model": "absent"}, 404, "model_not_found", "model"),
        ({"model": "a\x00b"}, 404, "model_not_found", "model"),
        ({"model": "batch"}, 400, "wrong_protocol", "model"),
        ({"model": "chat", "x": "y" * MAX_OPENAI_BODY_BYTES}, 413, "too_large", None),
    ],
)
def test_bad_body_is_refused(token, body, status, code, param):
    create(token)
    create(token, "batch", protocol="batch", port=None)
    answer = ask(token, body)
    assert (answer.status_code, error(answer)["code"], error(answer)["param"]) == (status, code, param)
    assert not InferenceRequest.objects.exists()


def test_long_context_is_accepted(token):
    create(token)
    assert isinstance(ask(token, {**CHAT, "x": "y" * (3 << 20)}), DeferredResponse)


def test_wrong_media_type_address_and_method_are_refused(token):
    assert ask(token, "x", kind="text/plain").status_code == 415
    assert error(ask(token, CHAT, "/v1/images/generations"))["code"] == "not_found"
    answer = call("GET", "/v1/chat/completions", token)
    assert answer.status_code == 405
    assert error(answer)["code"] == "method_not_allowed"


def test_missing_tokens_refuse_with_the_state_of_their_bucket(token):
    create(token, cost=2.0)
    admin = make_token(make_user("root", admin=True))
    bucket = {"tenant": "nlp", "scope": "user", "rate_per_second": 0.1, "burst": 3}
    assert call("POST", "/api/v1/buckets", admin, bucket).status_code == 201
    assert isinstance(ask(token), DeferredResponse)
    answer = ask(token)
    assert (answer.status_code, error(answer)["code"]) == (429, "out_of_tokens")
    assert error(answer)["type"] == "rate_limit_error"
    assert 9 <= int(answer["Retry-After"]) <= 10
    assert (answer["RateLimit-Limit"], answer["RateLimit-Remaining"]) == ("3", "1")
    assert InferenceRequest.objects.count() == 1


def test_full_queue_refuses(token):
    create(token, max_queue=1)
    ask(token)
    answer = ask(token)
    assert (answer.status_code, error(answer)["code"], answer["Retry-After"]) == (429, "queue_full", "1")


def test_draining_endpoint_refuses_with_a_status_that_clients_do_not_take_for_a_conflict(token):
    create(token)
    call("POST", "/api/v1/endpoints/chat/drain", token)
    answer = ask(token)
    assert (answer.status_code, error(answer)["code"]) == (503, "endpoint_draining")


def test_process_without_a_lease_refuses(token, monkeypatch):
    create(token)
    monkeypatch.setattr(serving, "wait_for_lease", lambda seconds: None)
    answer = ask(token)
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")


def test_task_for_an_endpoint_of_this_protocol_is_refused(token):
    create(token)
    answer = call("POST", "/api/v1/tasks", token, {"endpoint": "chat", "input": 1})
    assert (answer.status_code, answer.json()["code"]) == (400, "wrong_protocol")


def test_port_is_required_for_this_protocol(token):
    body = {"name": "x", "tenant": "nlp", "template": {"command": ["x"]}, "protocol": "openai"}
    answer = call("POST", "/api/v1/endpoints", token, body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "port")


def test_query_of_a_request_reaches_the_replica(token, monkeypatch):
    create(token)
    paths = []

    async def forward(self, request):
        paths.append(request.path)
        return HttpResponse()

    monkeypatch.setattr(type(openai.proxy), "forward", forward)
    path = "/v1/chat/completions?api-version=2024-10-21&user=%C3%A9"
    asyncio.run(ask(token, path=path).resolve())
    assert paths == [path]
