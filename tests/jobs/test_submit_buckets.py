"""Token buckets that limit the submission of jobs: one token a job, exact, and none for what is refused."""

import msgspec
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from tenants.models import BucketLevel, BucketScope, BucketUse, TokenBucket
from tests.api.calls import call
from tests.at_once import at_once
from tests.factories import make_member, make_node, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
JOB = {"command": ["true"], "gpu_count": 1}


@pytest.fixture
def tenant():
    make_node()
    return make_tenant("nlp")


@pytest.fixture
def token(tenant):
    return make_token(make_member(tenant))


def make_bucket(tenant, burst, limits=BucketUse.JOBS, scope=BucketScope.TENANT, **fields):
    values = {"rate_per_second": 0.0, "burst": burst, **fields}
    return TokenBucket.objects.create(tenant=tenant, scope=scope, limits=limits, **values)


def submit(token, body=JOB, path="jobs", key=""):
    headers = {"Authorization": f"Bearer {token}"} | ({"Idempotency-Key": key} if key else {})
    raw = msgspec.json.encode(body)
    return Client().post(f"/api/v1/{path}", raw, content_type="application/json", headers=headers)


def left():
    return [level for (level,) in BucketLevel.objects.order_by("id").values_list("level")]


def test_each_job_takes_a_token_and_the_answer_reports_the_rest(tenant, token):
    """A67"""
    make_bucket(tenant, 2)
    answers = [submit(token) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    assert [answer.get("RateLimit-Remaining") for answer in answers] == ["1", "0", "0"]
    assert answers[2]["RateLimit-Limit"] == "2"
    assert (answers[0]["RateLimit-Limit"], answers[2].json()["code"]) == ("2", "out_of_tokens")
    assert int(answers[2]["Retry-After"]) > 0
    assert Job.objects.count() == 2


def test_array_and_job_with_dependencies_take_one_token_each(tenant, token):
    make_bucket(tenant, 10)
    first = submit(token, {**JOB, "array": {"count": 50}})
    second = submit(token, {**JOB, "depends_on": [{"job": first.json()["job_id"], "kind": "after_any"}]})
    assert [first.status_code, second.status_code] == [201, 201], second.content
    assert left() == [8.0]


def test_bulk_takes_a_token_for_each_job_or_nothing(tenant, token):
    """A67"""
    make_bucket(tenant, 5)
    bulk = {"jobs": [JOB] * 3}
    admitted, refused = submit(token, bulk, "jobs/bulk"), submit(token, bulk, "jobs/bulk")
    assert (admitted.status_code, admitted["RateLimit-Remaining"]) == (201, "2")
    assert (refused.status_code, refused.json()["code"]) == (429, "out_of_tokens")
    too_large = submit(token, {"jobs": [JOB] * 6}, "jobs/bulk")
    assert (too_large.status_code, too_large.json()["code"]) == (400, "exceeds_burst")
    assert (left(), Job.objects.count()) == ([2.0], 3)


def test_bulk_for_two_tenants_takes_from_the_buckets_of_both(tenant):
    admin, other = make_token(make_user("root", admin=True)), make_tenant("vision")
    make_bucket(tenant, 5)
    make_bucket(other, 5)
    jobs = [{**JOB, "tenant": "nlp"}] * 3 + [{**JOB, "tenant": "vision"}]
    assert submit(admin, {"jobs": jobs}, "jobs/bulk")["RateLimit-Remaining"] == "2"
    assert sorted(left()) == [2.0, 4.0]
    assert submit(admin, {"jobs": jobs}, "jobs/bulk").status_code == 429
    assert sorted(left()) == [2.0, 4.0]


def test_refused_and_simulated_submits_take_nothing(tenant, token):
    """A67"""
    make_bucket(tenant, 5)
    assert submit(token).status_code == 201
    assert submit(token, {**JOB, "gpu_count": 1000}).status_code == 422
    assert submit(token, {**JOB, "depends_on": [{"job": 10**9, "kind": "after_any"}]}).status_code >= 400
    assert submit(token, JOB, "jobs?dry_run=true").status_code == 200
    assert submit(token, {"jobs": [JOB]}, "jobs/bulk?dry_run=true").status_code == 200
    assert left() == [4.0]


@pytest.mark.django_db(transaction=True)
def test_repeated_request_takes_nothing_again():
    """A67: also once the bucket is empty."""
    make_node()
    tenant = make_tenant("nlp")
    token = make_token(make_member(tenant))
    make_bucket(tenant, 3)
    single = [submit(token, JOB, key="one") for _ in range(3)]
    bulk = [submit(token, {"jobs": [JOB] * 2}, "jobs/bulk", key="two") for _ in range(3)]
    assert {answer.status_code for answer in single + bulk} == {201}
    assert submit(token, JOB, key="one").status_code == 201
    assert (left(), Job.objects.count()) == ([0.0], 3)
    assert submit(token, JOB, key="three").status_code == 429
    TokenBucket.objects.update(burst=10)
    BucketLevel.objects.update(level=1)
    assert submit(token, JOB, key="three").status_code == 201  # a refusal is not remembered


@pytest.mark.django_db(transaction=True)
def test_concurrent_submits_take_no_token_twice():
    """A67"""
    make_node()
    tenant = make_tenant("nlp")
    token = make_token(make_member(tenant))
    make_bucket(tenant, 5)
    make_bucket(tenant, 5, scope=BucketScope.USER)
    statuses = [answer.status_code for answer in at_once(*[lambda: submit(token)] * 8)]
    assert (statuses.count(201), statuses.count(429)) == (5, 3)
    assert (left(), Job.objects.count()) == ([0.0, 0.0], 5)


def test_bucket_counts_from_the_next_submit_on_and_ends_when_deleted(tenant, token):
    admin = make_token(make_user("root", admin=True))
    assert submit(token).status_code == 201
    body = {"tenant": "nlp", "scope": "user", "limits": "jobs", "rate_per_second": 0, "burst": 1}
    bucket = call("POST", "/api/v1/buckets", admin, body).json()
    assert [submit(token).status_code for _ in range(2)] == [201, 429]
    assert call("DELETE", f"/api/v1/buckets/{bucket['id']}", admin).status_code == 204
    answer = submit(token)
    assert answer.status_code == 201
    assert answer["RateLimit-Limit"] != "1"  # that of requests per minute


def test_submits_without_a_bucket_for_jobs_read_none(tenant, token):
    make_bucket(tenant, 5, limits=BucketUse.TASKS)
    make_bucket(make_tenant("other"), 5)
    submit(token)
    with CaptureQueriesContext(connection) as captured:
        assert submit(token).status_code == 201
    assert not [entry for entry in captured.captured_queries if "tenants_bucketlevel" in entry["sql"]]
    assert left() == []
