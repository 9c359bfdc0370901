"""A caller with too many requests is refused; other callers are not affected."""

import pytest
from django.conf import settings
from django.test import Client

from gpusched.env import read
from gpusched.lib.api import rate_limits
from gpusched.lib.api.rate_limits import Bucket
from tests.api.calls import call
from tests.factories import make_member, make_tenant, make_token

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def three_a_minute(monkeypatch):
    monkeypatch.setattr(settings, "ENV", read({"GPUSCHED_RATE_LIMIT_PER_MINUTE": "3"}))
    monkeypatch.setattr(rate_limits, "BAD_TOKENS_PER_MINUTE", 2)


@pytest.fixture
def user():
    return make_member(make_tenant("nlp"))


def test_each_answer_has_the_remaining_requests_and_then_429(user):
    token = make_token(user)
    answers = [call("GET", "/api/v1/me", token) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert {answer["RateLimit-Limit"] for answer in answers} == {"3"}
    assert 0 < int(answers[3]["Retry-After"]) <= 20
    assert (answers[3].json()["code"], int(answers[3]["RateLimit-Reset"]) > 20) == ("rate_limited", True)


def test_refusals_count_and_other_tokens_are_separate(user):
    token, other = make_token(user), make_token(user)
    answers = [call("POST", "/api/v1/tenants", token, {}).status_code for _ in range(4)]
    assert answers == [403, 403, 403, 429]
    assert call("GET", "/api/v1/me", other).status_code == 200


def test_replayed_answers_count(user):
    headers = {"Authorization": f"Bearer {make_token(user)}", "Idempotency-Key": "k1"}
    body = {"name": "t", "scopes": ["read"]}
    answers = [Client().post("/api/v1/tokens", body, "application/json", headers=headers) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [201, 201, 201, 429]
    assert [answer.get("Idempotent-Replay") for answer in answers] == [None, "true", "true", None]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[3]["Retry-After"]


def test_bad_tokens_are_refused_cheaply_and_good_ones_still_pass(user):
    assert [call("GET", "/api/v1/me", "ux.y").status_code for _ in range(3)] == [401, 401, 429]
    assert call("GET", "/api/v1/me", make_token(user)).status_code == 200


def test_pages_count_by_user_with_their_polls_and_calls(user):
    """Only the calls of a page counted: a loop over the pages themselves had no limit."""
    browsers = [Client(), Client()]
    for browser in browsers:
        browser.force_login(user)
    answers = [browser.get(path) for browser in browsers for path in ("/queue/", "/live/")]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert browsers[0].get("/api/v1/me").status_code == 429
    refused = browsers[0].get("/queue/")
    assert (refused.status_code, refused["Retry-After"], b"Too many requests" in refused.content) == (429, "20", True)


def test_bad_tokens_count_on_public_addresses():
    headers = {"Authorization": "Bearer ux.y"}
    assert [Client().get("/metrics", headers=headers).status_code for _ in range(3)] == [401, 401, 429]


def test_bucket_fills_evenly():
    bucket = Bucket(remaining=0.0, at=100.0, limit=60)
    left = [(bucket := bucket.after_request(at)).remaining for at in (100.5, 101.0, 101.5, 1000.0)]
    assert left == [-0.5, 0.0, -0.5, 59.0]


def test_callers_are_dropped_before_they_fill_the_memory(monkeypatch):
    monkeypatch.setattr(rate_limits._buckets, "max_entries", 5)
    for n in range(50):
        rate_limits._count(f"caller {n}", 3)
    assert len(rate_limits._buckets._entries) <= 5
