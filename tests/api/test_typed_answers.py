"""The answers of each operation match the OpenAPI document, field by field, both ways (A54)."""

import pytest
from drf_spectacular.generators import SchemaGenerator

from tenants.billing import budgets
from tests.api.every_operation import everything
from tests.api.strict_answers import Strict

# What is in these is different from reason to reason, event to event, subject to subject.
FREE = {
    "Reason.evidence",
    "Explanation.evidence",
    "Event.data",
    "JobEvent.data",
    "AuditEntry.before",
    "AuditEntry.after",
    "EndpointData.template",
}


@pytest.fixture(scope="module")
def document():
    return SchemaGenerator().get_schema(request=None, public=True)


def answers(document):
    """(METHOD path, status) → the schema of its JSON, of all good answers."""
    return {
        (f"{method.upper()} {path}", int(status)): answer["content"]["application/json"]["schema"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
        if "application/json" in answer.get("content", {})
    }


def test_every_successful_answer_names_its_fields(document):
    """A54: none is just an object."""
    result = answers(document)
    assert len(result) > 60
    for name, schema in result.items():
        assert all("$ref" in operation for operation in schema.get("anyOf", [schema])), name
    strict = Strict(document)
    promised = set().union(*(strict.documented(schema) for schema in result.values()))
    assert {field for field in promised if strict.is_free(field)} == FREE


@pytest.mark.e2e
@pytest.mark.django_db(transaction=True)
def test_every_real_answer_is_as_documented(document, settings, tmp_path, monkeypatch):
    """A54: an answer with a field that is not documented fails here, and a documented field that no answer has."""
    settings.DATA_DIR = tmp_path
    monkeypatch.setattr(budgets._hard_budgets, "seconds", 0.0)
    strict, schemas = Strict(document), answers(document)
    wrong, requested = [], set()
    for name, response in everything():
        requested.add((name, response.status_code))
        if response.status_code != 204:
            schema = schemas[name, response.status_code]
            wrong += [f"{name}: {fault}" for fault in strict.faults(schema, response.json())]
    assert wrong == []
    # tests/scheduling covers a server that is not ready.
    assert {operation for operation in schemas if operation[1] != 503} <= requested
    promised = set().union(*(strict.documented(schema) for schema in schemas.values()))
    assert sorted(promised - strict.seen) == []
