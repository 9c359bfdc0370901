"""The conventions of the API, tried on each of its operations: a new one keeps them, or fails here (A54, A55)."""

import re
from typing import Any

import msgspec
import pytest
from django.conf import settings
from django.db import transaction

from gpusched.env import read
from gpusched.protocol.states import Scope
from gpusched.urls import api
from tests.api.calls import methods_of
from tests.api.hostile import check
from tests.api.operations import Operation, Stage, contents, operations, writes
from tests.factories import make_token

pytestmark = pytest.mark.django_db
SECURED = [one for one in operations() if one.is_secured]
METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE"}


@pytest.fixture
def stage():
    return Stage()


class Asking:
    """Call several operations and check the refusals."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def refuses(
        self, operation: Operation, status: int, *, address: str = "", raw: bytes | None = None, **more: Any
    ) -> Any:
        body = msgspec.json.encode(self.stage.body(operation)) if operation.is_write else b""
        at = (address or self.stage.address(operation)) + more.pop("query", "")
        answer = self.stage.ask(operation.method, at, body if raw is None else raw, **more)
        assert answer.status_code == status, (operation.name, answer.status_code, answer.content[:300])
        assert status in operation.statuses, f"{operation.name} does not say that it answers {status}"
        return check(answer).json()


@pytest.fixture
def asking(stage):
    """A refused request has written nothing."""
    previous = contents()
    yield Asking(stage)
    assert contents() == previous


def test_document_has_each_operation_of_the_url_configuration():
    """A54: what is tried here and in the tests of hostile input is all that there is."""
    existing = {(method, f"/api/v1/{endpoint.pattern}") for endpoint in api for method in methods_of(endpoint)}
    allowed = {
        (operation.method, operation.path) for operation in operations() if operation.path.startswith("/api/v1/")
    }
    assert {(method, _shape(path)) for method, path in existing} == {(method, _shape(path)) for method, path in allowed}


def _shape(path: str) -> str:
    return re.sub(r"<[^>]+>|{[^}]+}", "{}", path)


def test_each_operation_succeeds_as_documented(stage):
    """A request that fails anyway would prove nothing."""
    for operation in operations():
        with transaction.atomic():
            answer = stage.do(operation)
            assert answer.status_code < 300, (operation.name, answer.content)
            assert answer.status_code in operation.statuses, operation.name
            assert answer["X-Request-Id"]
            transaction.set_rollback(True)


def test_each_post_with_a_key_is_executed_once(stage):
    """A03: a repeated request gets the first answer, another body is refused, and a login has no user yet."""
    for operation in (operation for operation in writes() if operation.method == "POST"):
        assert ("Idempotency-Key" in operation.parameters("header")) == operation.is_secured, operation.name
        if operation.is_secured and not _keeps_answers(operation):
            with transaction.atomic():
                is_done_once(stage, operation)
                transaction.set_rollback(True)


@pytest.mark.django_db(transaction=True)
def test_each_post_that_stores_its_own_answers_is_executed_once(stage):
    """A03: these rely on being a transaction of their own."""
    those = [operation for operation in writes() if operation.method == "POST" and _keeps_answers(operation)]
    assert those
    for operation in those:
        is_done_once(stage, operation)


def is_done_once(stage: Stage, operation: Operation) -> None:
    first = stage.do(operation, Idempotency_Key="once")
    stored = contents()
    repeated = stage.do(operation, Idempotency_Key="once")
    assert (repeated.status_code, repeated.content) == (first.status_code, first.content), operation.name
    assert (first.get("Idempotent-Replay"), repeated.get("Idempotent-Replay")) == (None, "true"), operation.name
    body = {**stage.body(operation), **({"name": "other"} if "name" in operation.fields else {})}
    other = stage.ask("POST", stage.address(operation), msgspec.json.encode(body) + b" ", Idempotency_Key="once")
    assert (other.status_code, check(other).json()["code"]) == (409, "idempotency_key_reused"), operation.name
    assert contents() == stored, operation.name


def _keeps_answers(operation: Operation) -> bool:
    [endpoint] = [endpoint for endpoint in api if _shape(f"/api/v1/{endpoint.pattern}") == _shape(operation.path)]
    view: Any = endpoint.callback
    return bool(getattr(view.cls, "keeps_answers", False))


def test_each_write_has_a_dry_run_or_rejects_it_by_name(stage):
    """A55: with a key, too: a dry run is no answer to give again."""
    previous = contents("tenants_loginattempts")  # a guess of a password counts in a dry run, too
    for operation in writes():
        with transaction.atomic():
            answer = stage.do(operation, "?dry_run=true", Idempotency_Key="tried")
            if "dry_run" in operation.parameters("query"):
                assert answer.status_code in operation.statuses & {200, 204}, (operation.name, answer.content)
                assert answer["Dry-Run"] == "true", operation.name
            else:
                assert [error["field"] for error in check(answer).json()["errors"]] == ["dry_run"], operation.name
            assert contents("tenants_loginattempts") == previous, operation.name
            transaction.set_rollback(True)


def test_each_versioned_edit_rejects_another_version(stage, asking):
    """A54: with the ETag that the same address gives, or any, it is done."""
    versioned = [operation for operation in writes() if "If-Match" in operation.parameters("header")]
    assert versioned
    for operation in versioned:
        etag = stage.ask("GET", stage.address(operation))["ETag"]
        for match in (etag, "*"):
            with transaction.atomic():
                assert stage.do(operation, If_Match=match).status_code < 300, operation.name
                transaction.set_rollback(True)
        asking.refuses(operation, 412, If_Match='"999999"')
        asking.refuses(operation, 400, If_Match="yesterday")


class TestEachOperationRefuses:
    """A55: with one shape, all members of it and the id of the request; and nothing is written."""

    def test_unauthenticated_caller_is_401(self, asking):
        for n, operation in enumerate(SECURED):
            assert asking.refuses(operation, 401, token=("", "no.token")[n % 2])["code"] == "not_authenticated"

    def test_token_without_the_scope_is_403(self, stage):
        scopes = {True: Scope.READ, False: Scope.WRITE}
        tokens = {is_write: make_token(stage.admin, scope) for is_write, scope in scopes.items()}
        asking, previous = Asking(stage), contents()
        for operation in SECURED:
            assert asking.refuses(operation, 403, token=tokens[operation.is_write])["code"] == "scope_missing"
        assert contents() == previous

    def test_unknown_resource_is_404(self, asking):
        for operation in operations():
            for name in operation.parameters("path"):
                ids = {**asking.stage.ids(operation), name: "nothing" if name in ("name", "secret") else 987654321}
                if not (name == "secret" and operation.method == "PUT"):  # it makes what is not there
                    assert asking.refuses(operation, 404, address=operation.path.format(**ids))["code"] == "not_found"

    def test_unknown_method_is_405(self, asking):
        for path in {operation.path for operation in operations()}:
            those = [operation for operation in operations() if operation.path == path]
            allowed = {operation.method for operation in those}
            for method in METHODS - allowed:
                answer = check(asking.stage.ask(method, asking.stage.address(those[0])))
                assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed"), (method, path)
                assert allowed <= set(answer["Allow"].split(", ")), path

    def test_unknown_parameter_or_field_is_400(self, asking):
        for operation in SECURED:
            assert asking.refuses(operation, 400, query="?no_such=1")["errors"][0]["field"] == "no_such"
        for operation in writes():
            raw = msgspec.json.encode({**asking.stage.body(operation), "no_such": 1})
            assert asking.refuses(operation, 400, raw=raw)["errors"][0]["field"] == "no_such"

    def test_repeated_parameter_is_400(self, asking):
        """Which one is meant? A dry run must never become a real one."""
        for operation in operations():
            for name in sorted(operation.parameters("query")):
                refused = asking.refuses(operation, 400, query=f"?{name}=json&{name}=csv")["errors"][0]
                assert (refused["field"], refused["code"]) == (name, "repeated"), operation.name

    def test_unavailable_content_type_is_406(self, asking):
        for operation in operations():
            asking.refuses(operation, 406, Accept="image/png")

    def test_body_that_is_too_large_or_of_another_type_is_rejected(self, asking, monkeypatch):
        for operation in writes():
            assert asking.refuses(operation, 415, kind="text/xml")["code"] == "unsupported_media_type"
        monkeypatch.setattr(settings, "DATA_UPLOAD_MAX_MEMORY_SIZE", 1000)
        for operation in writes():
            assert asking.refuses(operation, 413, raw=b'{"a": "' + b"x" * 2000 + b'"}')["code"] == "too_large"

    def test_too_many_requests_are_429(self, asking, monkeypatch):
        monkeypatch.setattr(settings, "ENV", read({"GPUSCHED_RATE_LIMIT_PER_MINUTE": "1"}))
        asking.stage.ask("GET", "/api/v1/me")
        for operation in SECURED:
            assert asking.refuses(operation, 429)["code"] == "rate_limited"
