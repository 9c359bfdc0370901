"""The OpenAPI document says what any request may be answered, whatever its view does (A54)."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.core.management import call_command
from django.test import Client
from drf_spectacular.generators import SchemaGenerator

from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
OPEN = {"/api/v1/health", "/api/v1/ready", "/api/v1/login", "/health", "/ready", "/api/v1/openapi.json", "/api/v1/docs"}


@pytest.fixture
def operations():
    document = call("GET", "/api/v1/openapi.json", make_token(make_member(make_tenant()))).json()
    return [
        (method, path, operation)
        for path, result in document["paths"].items()
        for method, operation in result.items()
        if path not in OPEN
    ]


def test_document_is_generated_once_for_requests_at_once(monkeypatch):
    """A55: drf-spectacular raises if two threads load its extensions, which it does with the first document."""
    generated, started, goes_on = [], Event(), Event()

    def generate(self, request=None, public=False):
        generated.append(public)
        started.set()
        assert goes_on.wait(10)
        return {"openapi": "3.1.0"}

    monkeypatch.setattr(SchemaGenerator, "get_schema", generate)
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(Client().get, "/api/v1/openapi.json")]
        assert started.wait(10)
        answers.append(threads.submit(Client().get, "/api/v1/openapi.json"))
        goes_on.set()
        assert [answer.result().json() for answer in answers] == [{"openapi": "3.1.0"}] * 2
    assert len(generated) == 1


def test_every_operation_documents_its_refusals(operations):
    """A54"""
    assert len(operations) > 40
    for method, path, operation in operations:
        answer = set(operation["responses"])
        expected = {"401", "403", "406", "429"} | ({"409"} if method == "post" else set())
        expected |= {"400", "413", "415"} if "requestBody" in operation else set()
        assert expected <= answer, f"{method} {path} does not tell of {sorted(expected - answer)}"


def test_every_refusal_is_a_problem(operations):
    """A55"""
    for method, path, operation in operations:
        for code, answer in operation["responses"].items():
            if code >= "400":
                assert list(answer["content"]) == ["application/problem+json"], f"{method} {path} {code}"


def test_every_query_parameter_has_a_description(operations):
    for method, path, operation in operations:
        for parameter in operation.get("parameters", ()):
            if parameter["in"] != "path" and parameter["name"] != "format":  # of those the names say it
                assert parameter.get("description"), f"{method} {path}: {parameter['name']}"


def test_headers_and_types_are_documented():
    """A54: what an operation reads and answers beside its body."""
    token, admin = make_token(make_member(make_tenant("nlp"))), make_token(make_user(admin=True))
    document = call("GET", "/api/v1/openapi.json", token).json()
    quota, submit = document["paths"]["/api/v1/tenants/{name}/quota"], document["paths"]["/api/v1/jobs"]

    def parameters(operation):
        return {one["name"]: one["schema"] for one in operation["parameters"]}

    assert {"If-Match", "dry_run"} <= set(parameters(quota["put"]))
    assert "If-Match" not in parameters(quota["get"])
    assert "Idempotency-Key" in parameters(submit["post"])
    assert parameters(submit["get"])["limit"] == {"type": "integer", "minimum": 1, "maximum": 1000}
    assert parameters(submit["get"])["tenant"] == {"type": "string"}
    assert parameters(submit["post"])["dry_run"] == {"type": "boolean"}
    assert "headers" not in submit["post"]["responses"]["400"]
    for operation, path, body in ((quota["get"], "", None), (quota["put"], "?dry_run=true", {"max_gpus": 1})):
        method = "PUT" if body else "GET"
        answer = call(method, f"/api/v1/tenants/nlp/quota{path}", admin if body else token, body)
        told = set(operation["responses"]["200"]["headers"])
        assert told <= set(document["components"]["headers"])
        assert {name for name in document["components"]["headers"] if name in answer} <= told
        assert "Dry-Run" in told if body else "ETag" in answer


def test_document_is_built_without_a_warning_and_is_valid(capsys):
    """A54"""
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", os.devnull)
    assert "arning" not in capsys.readouterr().err


def test_operations_have_unique_names():
    document = call("GET", "/api/v1/openapi.json", None).json()
    names = [operation["operationId"] for result in document["paths"].values() for operation in result.values()]
    assert len(names) == len(set(names))
    assert {"get_jobs", "post_jobs", "get_jobs_job_id", "get_root_health"} <= set(names)
