"""A POST with an Idempotency-Key is done once, whoever repeats it and however often."""

import threading
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.states import Scope
from jobs.models import Job, KeptAnswer
from tenants.models import ApiToken, Tenant
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, make_user, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin():
    return make_user(admin=True)


@pytest.fixture
def token(admin):
    return make_token(admin)


def post(path, token, body=b"{}", key="k1"):
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
    return Client().post(f"/api/v1/{path}", body, content_type="application/json", headers=headers)


def test_repeated_request_gets_the_first_answer_and_does_nothing(token):
    """A03"""
    first, second = (post("tenants", token, b'{"name": "nlp"}') for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.content == second.content
    assert ("Idempotent-Replay" in first, second["Idempotent-Replay"]) == (False, "true")
    assert Tenant.objects.count() == 1


@pytest.mark.parametrize("path", ["jobs", "jobs?dry_run=true", "tenants", "tenants?dry_run=true", "login"])
@pytest.mark.parametrize("key", ["k" * 256, "a\x00b"])
def test_invalid_key_is_refused_by_every_post(token, path, key):
    answer = post(path, token, b'{"name": "nlp"}', key=key)
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, ["Idempotency-Key"])
    assert not Tenant.objects.exists()


def test_actions_take_a_key(token, admin):
    """Even when the thing has changed since: the answer is that of the first time."""
    make_node(name="n1")
    first = post("nodes/n1/cordon", token)
    call("POST", "/api/v1/nodes/n1/uncordon", token)
    assert post("nodes/n1/cordon", token).content == first.content
    assert query("SELECT intent FROM nodes_node") == [{"intent": "open"}]
    job = submit(admin, make_tenant())
    assert post(f"jobs/{job}/hold", token, key="k2").content == post(f"jobs/{job}/hold", token, key="k2").content


@pytest.mark.parametrize(("path", "body"), [("tenants", b'{"name": "b"}'), ("tokens", b'{"name": "a"}')])
def test_same_key_for_another_request_is_a_conflict(token, path, body):
    """A03: another body, or another address."""
    assert post("tenants", token, b'{"name": "a"}').status_code == 201
    answer = post(path, token, body)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_key_reused")
    assert not Tenant.objects.filter(name="b").exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("turn", [1, -1])
def test_key_of_a_submit_conflicts_with_other_requests(turn):
    """A03: nor is the key of anything else one for a submit, though submits keep theirs apart; after a day it is."""
    token = make_token(make_member(make_tenant("nlp")))
    requested = [("jobs", b'{"command": ["x"]}'), ("jobs/bulk", b'{"jobs": [{"command": ["x"]}]}')][::turn]
    assert [post(path, token, body).status_code for path, body in requested] == [201, 409]
    assert post(requested[1][0], token, requested[1][1]).json()["code"] == "idempotency_key_reused"
    assert (Job.objects.count(), post(requested[0][0], token, requested[0][1])["Idempotent-Replay"]) == (1, "true")
    execute("UPDATE jobs_keptanswer SET created_at = created_at - interval '25 hours'")
    execute("UPDATE jobs_idempotencykey SET created_at = created_at - interval '25 hours'")
    assert post(requested[1][0], token, requested[1][1]).status_code == 201


@pytest.mark.django_db(transaction=True)
def test_pages_take_a_key():
    """A03: there keys are a person's."""
    browser = Client()
    browser.force_login(make_member(make_tenant("nlp")))
    values: Any = {"content_type": "application/json", "headers": {"Idempotency-Key": "k"}}
    assert browser.post("/api/v1/tokens", b'{"name": "x"}', **values).status_code == 201
    assert browser.post("/api/v1/jobs", b'{"command": ["x"]}', **values).status_code == 409


def test_login_has_no_key():
    """Documented: a login has no user yet, and each creates its own token."""
    make_user("grace")
    body = b'{"username": "grace", "password": "correct horse battery"}'
    values: Any = {"content_type": "application/json", "headers": {"Idempotency-Key": "k"}}
    first, second = (Client().post("/api/v1/login", body, **values) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json()["token"] != second.json()["token"]


def test_refusal_frees_its_key_and_leaves_nothing(token):
    assert post("tenants", token, b'{"name": "UPPER"}').status_code == 400
    assert not KeptAnswer.objects.exists()
    assert post("tenants", token, b'{"name": "lower"}').status_code == 201


def test_keys_of_tokens_are_separate(token, admin):
    """A replay gives away nothing: the other token may be allowed less."""
    assert post("tokens", token, b'{"name": "x", "scopes": ["read"]}').status_code == 201
    other = make_token(admin, Scope.READ)
    assert post("tokens", other, b'{"name": "x", "scopes": ["read"]}').status_code == 403
    assert post("tokens", "no.token", b'{"name": "x", "scopes": ["read"]}').status_code == 401


def test_text_of_a_new_token_is_in_no_table(token):
    """A56"""
    created = post("tokens", token, b'{"name": "x"}').json()["token"]
    assert created == post("tokens", token, b'{"name": "x"}').json()["token"]
    rows = query("SELECT string_agg(k::text, ' ') AS text FROM jobs_keptanswer k")
    assert created.split(".")[1] not in rows[0]["text"]


def test_key_is_free_after_a_day(token):
    post("tokens", token, b'{"name": "x"}')
    execute("UPDATE jobs_keptanswer SET created_at = created_at - interval '25 hours'")
    assert "Idempotent-Replay" not in post("tokens", token, b'{"name": "x"}')


@pytest.mark.parametrize("key", ["x" * 256, "a\x00b"])
def test_key_that_cannot_be_stored_is_rejected(token, key):
    """A55"""
    answer = post("tenants", token, b'{"name": "nlp"}', key=key)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_with_a_key_execute_once():
    """A03: real connections; all get the one answer."""
    token = make_token(make_member(make_tenant("nlp")))
    answers = []

    def ask():
        answers.append(post("tokens", token, b'{"name": "race"}').content)
        connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(answers), len(set(answers))) == (6, 1)
    assert ApiToken.objects.filter(name="race").count() == 1
