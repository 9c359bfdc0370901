"""The OpenAPI document says what any request may be answered, whatever its view does (A54)."""

import os

import pytest
from django.core.management import call_command

from tests.api.test_access import call
from tests.factories import make_member, make_tenant, make_token

pytestmark = pytest.mark.django_db
OPEN = {"/api/v1/health", "/api/v1/ready", "/api/v1/login", "/health", "/ready", "/api/v1/openapi.json", "/api/v1/docs"}


@pytest.fixture
def operations():
    document = call("GET", "/api/v1/openapi.json", make_token(make_member(make_tenant()))).json()
    return [
        (method, path, one)
        for path, found in document["paths"].items()
        for method, one in found.items()
        if path not in OPEN
    ]


def test_every_operation_tells_its_refusals(operations):
    """A54"""
    assert len(operations) > 40
    for method, path, operation in operations:
        told = set(operation["responses"])
        wanted = {"401", "403", "406", "429"} | ({"409"} if method == "post" else set())
        wanted |= {"400", "413", "415"} if "requestBody" in operation else set()
        assert wanted <= told, f"{method} {path} does not tell of {sorted(wanted - told)}"


def test_every_refusal_is_a_problem(operations):
    """A55"""
    for method, path, operation in operations:
        for code, answer in operation["responses"].items():
            if code >= "400":
                assert list(answer["content"]) == ["application/problem+json"], f"{method} {path} {code}"


def test_every_query_parameter_says_what_it_is(operations):
    for method, path, operation in operations:
        for parameter in operation.get("parameters", ()):
            if parameter["in"] != "path" and parameter["name"] != "format":  # of those the names say it
                assert parameter.get("description"), f"{method} {path}: {parameter['name']}"


def test_the_document_is_made_without_a_warning_and_is_valid(capsys):
    """A54"""
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", os.devnull)
    assert "arning" not in capsys.readouterr().err


def test_operations_have_names_of_their_own():
    document = call("GET", "/api/v1/openapi.json", None).json()
    names = [one["operationId"] for found in document["paths"].values() for one in found.values()]
    assert len(names) == len(set(names))
    assert {"get_jobs", "post_jobs", "get_jobs_job_id", "get_root_health"} <= set(names)
