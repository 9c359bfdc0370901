"""What scripts rely on stays: nothing of the committed OpenAPI document (docs/openapi.json) is gone from the server's."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.api.test_access import call
from tests.docs.reading import text_of

Document = dict[str, Any]
COMMITTED: Document = json.loads(text_of("docs/openapi.json"))


@pytest.mark.django_db
def test_no_script_that_the_committed_document_allows_breaks():
    """A54: a change that is meant to break needs a new version of the API, not a new docs/openapi.json."""
    assert not list(breaking(COMMITTED, call("GET", "/api/v1/openapi.json", None).json()))


def breaking(old: Document, new: Document) -> Iterator[str]:
    """Sentences about operations, parameters, answers and fields that are gone or became required."""
    for path, operations in old["paths"].items():
        for method, operation in operations.items():
            name = f"{method.upper()} {path}"
            if method not in new["paths"].get(path, {}):
                yield f"{name} is gone"
            else:
                yield from _operation(name, operation, new["paths"][path][method])
    for name, schema in old["components"]["schemas"].items():
        found = new["components"]["schemas"].get(name)
        if found is not None:
            yield from _fields(name, schema, found)
    for name in _bodies(old) & _bodies(new):
        schemas = [document["components"]["schemas"].get(name, {}) for document in (old, new)]
        before, now = (set(schema.get("required", ())) for schema in schemas)
        yield from (f"{name}.{field} is required now" for field in sorted(now - before))


def _operation(name: str, old: Document, new: Document) -> Iterator[str]:
    before, now = ({(p["in"], p["name"]): p for p in one.get("parameters", ())} for one in (old, new))
    yield from (f"{name}: parameter {key[1]} is gone" for key in before.keys() - now.keys())
    yield from (
        f"{name}: parameter {k[1]} is required now" for k, p in now.items() if p.get("required") and k not in before
    )
    yield from (
        f"{name}: no {code} any more" for code in old["responses"] if code < "300" and code not in new["responses"]
    )


def _fields(name: str, old: Document, new: Document) -> Iterator[str]:
    for field, schema in old.get("properties", {}).items():
        if field not in new.get("properties", {}):
            yield f"{name}.{field} is gone"
        elif (was := _type(schema)) - (now := _type(new["properties"][field])):
            yield f"{name}.{field} was {sorted(was)}, now {sorted(now)}"


def _type(schema: Document) -> set[str]:
    """The types that it may have; an untyped one says nothing."""
    found = schema.get("type")
    kinds = {found} if isinstance(found, str) else set(found or ())
    return kinds.union(*(_type(one) for one in schema.get("anyOf", ())))


def _bodies(document: Document) -> set[str]:
    """Schemas that a request sends."""
    bodies = [one.get("requestBody", {}) for found in document["paths"].values() for one in found.values()]
    refs = [kind["schema"].get("$ref", "") for body in bodies for kind in body.get("content", {}).values()]
    return {ref.rpartition("/")[2] for ref in refs if ref}


def without(*path: str) -> Document:
    changed = deepcopy(COMMITTED)
    at = changed
    for word in path[:-1]:
        at = at[word]
    del at[path[-1]]
    return changed


class TestBreaking:
    @pytest.mark.parametrize(
        ("path", "sentence"),
        [
            (("paths", "/api/v1/queue"), "GET /api/v1/queue is gone"),
            (("paths", "/api/v1/jobs", "get", "parameters"), "GET /api/v1/jobs: parameter state is gone"),
            (("paths", "/api/v1/jobs", "post", "responses", "201"), "POST /api/v1/jobs: no 201 any more"),
            (("components", "schemas", "JobData", "properties", "exit_code"), "JobData.exit_code is gone"),
        ],
    )
    def test_what_is_gone_is_named(self, path, sentence):
        assert sentence in list(breaking(COMMITTED, without(*path)))

    def test_a_field_that_becomes_required_is_named(self):
        changed = deepcopy(COMMITTED)
        changed["components"]["schemas"]["NewRate"]["required"].append("ends_at")
        assert list(breaking(COMMITTED, changed)) == ["NewRate.ends_at is required now"]

    def test_a_type_that_changes_is_named(self):
        changed = deepcopy(COMMITTED)
        changed["components"]["schemas"]["Used"]["properties"]["jobs"]["type"] = "string"
        assert list(breaking(COMMITTED, changed)) == ["Used.jobs was ['integer'], now ['string']"]

    def test_what_is_added_breaks_nothing(self):
        changed = deepcopy(COMMITTED)
        changed["paths"]["/api/v2"] = {}
        changed["components"]["schemas"]["Used"]["properties"]["more"] = {"type": "string"}
        assert not list(breaking(COMMITTED, changed))
