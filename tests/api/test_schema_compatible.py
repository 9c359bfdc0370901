"""Compatibility for scripts: the server breaks nothing of the committed OpenAPI document, and that nothing of the one
before it."""

import json
import subprocess
from copy import deepcopy
from typing import Any

import pytest

from deploy import check_api
from deploy.check_api import Document, breaking, intended_breaks, previous_document
from tests.api.calls import call
from tests.docs.reading import text_of

COMMITTED: Document = json.loads(text_of("docs/openapi.json"))


@pytest.mark.django_db
def test_committed_document_breaks_no_script():
    """A54: a change that is meant to break needs a new version of the API, not a new docs/openapi.json."""
    assert not breaking(COMMITTED, call("GET", "/api/v1/openapi.json", None).json())


def test_previous_document_breaks_no_script():
    """A54: `make openapi` writes over the baseline, and so hides no break. Those meant are in intended_breaks.txt."""
    older = previous_document()
    if older is not None:  # a source archive has no history
        assert not set(breaking(older, COMMITTED)) - intended_breaks()


def without(*path: str) -> Document:
    changed = deepcopy(COMMITTED)
    at = changed
    for word in path[:-1]:
        at = at[word]
    del at[path[-1]]
    return changed


def changed(location: str, **changes: object) -> Document:
    """With some keys at a place like `components.schemas.Used.properties.jobs` changed."""
    created = deepcopy(COMMITTED)
    at: Any = created
    for word in location.split(" "):
        at = at[int(word)] if isinstance(at, list) else at[word]
    at.update(changes)
    return created


def one(answer: Document, sent: Document) -> Document:
    """A document of one operation, which takes the one and answers the other."""
    content = [{"application/json": {"schema": schema}} for schema in (sent, answer)]
    post = {"requestBody": {"content": content[0]}, "responses": {"200": {"content": content[1]}}}
    return {"paths": {"/x": {"post": post}}, "components": {"schemas": {}}}


def fields(must: tuple[str, ...] = (), **schemas: Document) -> Document:
    return {"type": "object", "properties": schemas, "required": list(must)}


TEXT, NUMBER, COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer"}
OR_NONE = {"anyOf": [TEXT, {"type": "null"}]}
AB, A = {"type": "string", "enum": ["a", "b"]}, {"type": "string", "enum": ["a"]}
TOLD, SENT = "POST /x: 200", "POST /x: body"
# before, after → the break in answers, and in requests.
CHANGES = {
    "gone": (fields(a=TEXT), fields(), [".a is gone"], [".a is gone"]),
    "optional": (fields(("a",), a=TEXT), fields(a=TEXT), [".a may be missing now"], []),
    "required": (fields(a=TEXT), fields(("a",), a=TEXT), [], [".a is required now"]),
    "nullable": (TEXT, OR_NONE, [" was ['string'], now ['null', 'string']"], []),
    "never null": (OR_NONE, TEXT, [], [" was ['null', 'string'], now ['string']"]),
    "wider": (COUNT, NUMBER, [" was ['integer'], now ['number']"], []),
    "narrower": (NUMBER, COUNT, [], [" was ['number'], now ['integer']"]),
    "untyped": (TEXT, {}, [" was ['string'], now anything"], []),
    "typed": ({}, TEXT, [], [" was anything, now ['string']"]),
    "a word less": (AB, A, [' may not be "b" any more'], [' may not be "b" any more']),
    "a word more": (A, AB, [], []),
    "words": (TEXT, A, [], [" may only be one of ['\"a\"'] now"]),
    "words or null": ({"enum": ["a"]}, {"anyOf": [{"enum": ["a"]}, {"type": "null"}]},
                      [" was ['string'], now ['null', 'string']"], []),
    "one that may be anything": (OR_NONE, {"anyOf": [TEXT, {}]}, [" was ['null', 'string'], now anything"], []),
    "items": ({"type": "array", "items": TEXT}, {"type": "array", "items": COUNT},
              ["[] was ['string'], now ['integer']"], ["[] was ['string'], now ['integer']"]),
    "values": ({"type": "object", "additionalProperties": TEXT}, {"type": "object", "additionalProperties": COUNT},
               ["[] was ['string'], now ['integer']"], ["[] was ['string'], now ['integer']"]),
    "a field more": (fields(), fields(a=TEXT), [], []),
}  # fmt: skip


class TestBreaking:
    @pytest.mark.parametrize("name", CHANGES)
    def test_each_kind_of_schema_change_is_classified(self, name):
        previous, after, answer, sent = CHANGES[name]
        assert breaking(one(previous, TEXT), one(after, TEXT)) == [TOLD + remaining for remaining in answer]
        assert breaking(one(TEXT, previous), one(TEXT, after)) == [SENT + remaining for remaining in sent]

    @pytest.mark.parametrize(
        ("path", "sentence"),
        [
            (("paths", "/api/v1/queue"), "GET /api/v1/queue is gone"),
            (("paths", "/api/v1/jobs", "get", "parameters"), "GET /api/v1/jobs: parameter state is gone"),
            (("paths", "/api/v1/jobs", "post", "responses", "201"), "POST /api/v1/jobs: no 201 any more"),
            (("paths", "/api/v1/jobs", "post", "requestBody"), "POST /api/v1/jobs: takes no body any more"),
            (("components", "schemas", "JobData", "properties", "exit_code"), "JobData.exit_code is gone"),
            (
                ("paths", "/api/v1/events", "get", "responses", "200", "content", "text/event-stream"),
                "GET /api/v1/events: 200: no text/event-stream any more",
            ),
        ],
    )
    def test_removed_part_is_named(self, path, sentence):
        assert sentence in breaking(COMMITTED, without(*path))

    @pytest.mark.parametrize(
        ("location", "changes", "sentence"),
        [
            ("components schemas NewRate", {"required": ["gpu_model", "price_per_gpu_hour", "ends_at"]},
             "NewRate.ends_at is required now"),
            ("components schemas Used properties jobs", {"type": "string"}, "Used.jobs was ['integer'], now ['string']"),
            ("paths /api/v1/jobs get parameters 0", {"required": True}, "GET /api/v1/jobs: parameter array is required now"),
            ("paths /api/v1/jobs post requestBody", {"required": True}, "POST /api/v1/jobs: the body is required now"),
        ],
    )  # fmt: skip
    def test_change_is_named_once(self, location, changes, sentence):
        assert breaking(COMMITTED, changed(location, **changes)) == [sentence]

    def test_ref_is_followed_whatever_its_name(self):
        """Also where a schema holds itself."""
        tree = fields(("name",), name=TEXT, parts={"type": "array", "items": {"$ref": "#/components/schemas/Tree"}})
        old = one({"$ref": "#/components/schemas/Tree"}, TEXT)
        old["components"]["schemas"]["Tree"] = tree
        renamed = json.loads(json.dumps(old).replace("Tree", "Wood"))
        assert breaking(old, old) == breaking(old, renamed) == []
        renamed["components"]["schemas"]["Wood"]["properties"]["name"] = COUNT
        assert breaking(old, renamed) == ["Tree.name was ['string'], now ['integer']"]

    def test_additions_break_nothing(self):
        more = changed("components schemas Used properties", more=TEXT)
        more["paths"]["/api/v2"] = {}
        assert not breaking(COMMITTED, more)


class TestBaseline:
    @pytest.fixture
    def repository(self, tmp_path, monkeypatch):
        """Return a function that writes a version of the document, and another that commits it."""
        monkeypatch.chdir(tmp_path)
        for name in ("AUTHOR", "COMMITTER"):
            monkeypatch.setenv(f"GIT_{name}_NAME", "x")
            monkeypatch.setenv(f"GIT_{name}_EMAIL", "x@example.org")
        (tmp_path / "docs").mkdir()

        def write(version: str) -> None:
            (tmp_path / check_api.PATH).write_text(json.dumps({"version": version}))

        def commit() -> None:
            for text in (["init", "-q"], ["add", "."], ["commit", "-qm", "x", "--allow-empty"]):
                subprocess.run(["git", *text], check=True)

        return write, commit

    def test_changed_document_is_compared_with_the_last_commit(self, repository):
        write, commit = repository
        for version in ("1", "2"):
            write(version)
            commit()
        write("3")
        assert previous_document() == {"version": "2"}

    def test_committed_document_is_compared_with_the_previous_version(self, repository):
        write, commit = repository
        for version in ("1", "2", "2"):
            write(version)
            commit()
        assert previous_document() == {"version": "1"}

    def test_document_without_history_has_no_previous_version(self, repository):
        write, commit = repository
        write("1")
        assert previous_document() is None
        commit()
        assert previous_document() is None

    def test_intended_change_needs_a_reason(self, tmp_path, monkeypatch):
        (tmp_path / "list").write_text("# how\nGET /x is gone  # unused\n")
        monkeypatch.setattr(check_api, "INTENDED", tmp_path / "list")
        assert intended_breaks() == {"GET /x is gone"}
