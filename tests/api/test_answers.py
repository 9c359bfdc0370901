"""Shapes that scripts rely on: errors, pages, quotas with versions, logs by offset, OpenAPI, metrics."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec
import pytest
from django.test import Client

from jobs.logs import store
from tests.api.calls import call
from tests.factories import make_node, make_tenant, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def token(user):
    return make_token(user)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/api/v1/jobs/99999999999999999999", 404),
        ("GET", "/api/v1/jobs/x", 404),
        ("GET", "/api/v1/jobs?limit=0", 400),
        ("GET", "/api/v1/jobs?limit=x", 400),
        ("GET", "/api/v1/jobs?cursor=zzz", 400),
        ("GET", "/api/v1/jobs?state=sleeping", 400),
        ("GET", "/api/v1/jobs?stat=pending", 400),
        ("GET", "/api/v1/jobs?name=%00", 400),
        ("GET", "/api/v1/queue?cursor=WzEsMl0", 400),
    ],
)
def test_every_error_is_a_problem(method, path, status, token):
    """A55"""
    response = call(method, path, token)
    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"
    answer = response.json()
    assert {"type", "title", "status", "detail", "code", "next_step", "request_id", "errors", "error"} == set(answer)
    assert answer["request_id"] == response["X-Request-Id"]


def test_jobs_are_paged_without_gaps(user, tenant, token):
    ids = [submit(user, tenant) for _ in range(5)]
    observed, cursor = [], ""
    while True:
        page = call("GET", f"/api/v1/jobs?limit=2{cursor}", token).json()
        observed += [job["id"] for job in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert observed == ids[::-1]


def test_queue_is_paged_in_order(user, tenant, token):
    low, high = submit(user, tenant, priority=300), submit(user, tenant, priority=900, gpu_count=3)
    first = call("GET", "/api/v1/queue?limit=1", token).json()
    second = call("GET", f"/api/v1/queue?limit=1&cursor={first['next_cursor']}", token).json()
    assert [first["items"][0]["job_id"], second["items"][0]["job_id"]] == [high, low]
    assert (first["total"], first["total_gpus"]) == (2, 4)
    assert [(row["items"][0]["position"], row["items"][0]["gpus_ahead"]) for row in (first, second)] == [(1, 0), (2, 3)]


def test_jobs_are_filtered(user, tenant, token):
    job_id = submit(user, tenant, name="Training Job")
    submit(user, tenant, name="other")
    for query in ("name=training", f"user={user.username}&name=TRAIN", "state=waiting&name=job", "tenant=nlp&name=Job"):
        assert [job["id"] for job in call("GET", f"/api/v1/jobs?{query}", token).json()["items"]] == [job_id]


class TestQuota:
    @pytest.fixture
    def admin(self):
        return make_token(make_user(admin=True))

    def put(self, admin, body, **headers):
        return Client().put(
            "/api/v1/tenants/nlp/quota",
            msgspec.json.encode(body),
            content_type="application/json",
            headers={"Authorization": f"Bearer {admin}", **headers},
        )

    def test_edit_is_recorded_with_its_actor(self, tenant, admin):
        assert self.put(admin, {"max_gpus": 4, "guaranteed_gpus": 2}).json()["max_gpus"] == 4
        from pghistory.models import Events

        event = Events.objects.tracks(tenant.quota).filter(pgh_label="update").get()
        assert event.pgh_diff["max_gpus"] == [None, 4]
        assert event.pgh_context["actor"].startswith("user")

    def test_concurrent_edit_is_not_overwritten(self, tenant, admin):
        etag = self.put(admin, {"max_gpus": 4})["ETag"]
        self.put(admin, {"max_gpus": 5})
        assert self.put(admin, {"max_gpus": 6}, **{"If-Match": etag}).status_code == 412
        tenant.quota.refresh_from_db()
        assert tenant.quota.max_gpus == 5

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"max_gpus": -1}, "max_gpus"),
            ({"max_gpus": 2**40}, "max_gpus"),
            ({"max_gpus": 1.5}, "max_gpus"),
            ({"guaranteed_gpus": 4, "max_gpus": 2}, ""),
            ({"max_gpu": 1}, "max_gpu"),
        ],
    )
    def test_bad_quota_is_rejected_by_name(self, tenant, admin, body, field):
        answer = self.put(admin, body)
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"] == field

    @pytest.mark.django_db(transaction=True)
    def test_lowered_quota_stops_nothing_and_starts_nothing(self, tenant, user, admin):
        node = make_node()
        running = submit(user, tenant, gpu_count=4)
        run_cycle()
        node.start_all()
        self.put(admin, {"max_gpus": 2})
        waiting = submit(user, tenant, gpu_count=1)
        run_cycle()
        answer = call("GET", f"/api/v1/jobs/{waiting}/explain", admin).json()
        assert answer["code"] == "quota_wait"
        assert answer["sentence"] == "quota exceeded for tenant nlp: GPUs requested=1, limit=2, in use=4"
        assert call("GET", f"/api/v1/jobs/{running}", admin).json()["state"] == "running"


def test_logs_are_read_by_offset(user, tenant, token):
    make_node()
    job_id = submit(user, tenant)
    run_cycle()
    assert store.append(job_id, 1, 0, 0, b"hello ") == 6
    assert store.append(job_id, 1, 0, 0, b"hello ") == 6, "a repeated piece doubles nothing"
    assert store.append(job_id, 1, 0, 9, b"gap") == 6, "a piece beyond the end leaves no hole"
    assert store.append(job_id, 1, 0, 3, b"lo world") == 11, "an overlapping piece adds what is new"

    response = call("GET", f"/api/v1/jobs/{job_id}/logs?attempt=1&offset=2&limit=4", token)
    assert response.content == b"llo "
    assert (response["X-Log-Next-Offset"], response["X-Log-Size"], response["X-Log-Complete"]) == ("6", "11", "false")
    assert call("GET", f"/api/v1/jobs/{job_id}/logs?attempt=1&offset=-5", token).content == b"world"
    for wrong, allowed in (("attempt=2", "its latest is 1"), ("rank=1", "attempt 1 has ranks 0 to 0")):
        for more in ("", "&download=true"):
            answer = call("GET", f"/api/v1/jobs/{job_id}/logs?{wrong}{more}", token)
            assert (answer.status_code, answer.json()["next_step"]) == (404, allowed)


def test_openapi_describes_every_endpoint_and_is_valid(token):
    from gpusched.urls import api

    document = call("GET", "/api/v1/openapi.json", token).json()
    assert document["openapi"].startswith("3.1")
    described = sum(1 for path in document["paths"] if path.startswith("/api/v1/"))
    assert described >= len(api)
    assert "JobRequest" in document["components"]["schemas"]
    assert call("GET", "/api/v1/docs", None).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_metrics_match_the_database(user, tenant):
    node = make_node(gpus=2)
    submit(user, tenant)
    run_cycle()
    node.start_all()
    text = Client().get("/metrics").content.decode()
    assert 'gpu_scheduler_jobs_total{state="running"} 1.0' in text
    assert 'gpu_scheduler_scheduling_latency_seconds_count{phase="plan"} 1.0' in text
    assert "gpu_scheduler_submit_to_start_seconds_count 1.0" in text
    assert "gpu_scheduler_gpu_temperature_celsius{" not in text, "nothing has been read: unknown is not zero"


@pytest.mark.django_db(transaction=True)
def test_metrics_of_a_tenant_need_access_to_it(user, tenant, token):
    """A08: without a token no tenant is named; a member sees one tenant, an admin all."""
    admin = make_token(make_user("root", admin=True))
    make_tenant("vision")
    assert call("PUT", "/api/v1/tenants/vision/budget", admin, {"hard_gpu_hours": 5}).status_code == 200

    def named(header):
        text = Client().get("/metrics", headers=header).content.decode()
        return {name for name in ("nlp", "vision") if f'tenant="{name}"' in text}

    def bearer(text):
        return {"Authorization": f"Bearer {text}"}

    assert named({}) == set()
    assert named(bearer(token)) == {"nlp"}
    assert named(bearer(admin)) == {"nlp", "vision"}
    refused = Client().get("/metrics", headers=bearer("x.y"))
    assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")


@pytest.mark.django_db(transaction=True)
def test_cluster_status_counts_nodes_gpus_and_jobs(user, tenant, token):
    make_node(gpus=4)
    submit(user, tenant, gpu_count=3)
    run_cycle()
    status = call("GET", "/api/v1/cluster/status", token).json()
    assert (status["total_nodes"], status["online_nodes"], status["total_gpus"], status["available_gpus"]) == (
        1,
        1,
        4,
        1,
    )
    assert (status["total_jobs"], status["pending_jobs"], status["running_jobs"]) == (1, 0, 0)


@pytest.mark.parametrize("path", ["/agent/logs", "/health", "/login/"])
def test_answers_have_the_time_of_the_server(path: str) -> None:
    """With it an agent's `doctor` compares the clocks. Daphne sends none, and without a proxy the check never ran."""
    sent = parsedate_to_datetime(Client().get(path).headers["Date"])
    assert abs((datetime.now(UTC) - sent).total_seconds()) < 10
