"""Many jobs in one request: all or none, each checked like a single submit, errors by number and field."""

from dataclasses import replace

import msgspec
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.models import Job, JobEvent
from jobs.submit import queue_limits
from nodes.models import Node
from scheduling import policy
from tests.factories import make_member, make_node, make_tenant, make_token

pytestmark = pytest.mark.django_db


@pytest.fixture
def user():
    return make_member(make_tenant("nlp"), name="ada")


@pytest.fixture
def post(user):
    """Return a function that posts a bulk (a list of jobs, or raw bytes) and returns (status, answer)."""
    token = make_token(user)

    def post(jobs, query="", **headers):
        raw = jobs if isinstance(jobs, bytes) else msgspec.json.encode({"jobs": jobs})
        response = Client().post(
            f"/api/v1/jobs/bulk{query}",
            raw,
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}", **headers},
        )
        return response.status_code, response.json()

    return post


def fields_of(answer):
    return [error["field"] for error in answer["errors"]]


def test_jobs_of_a_bulk_are_pending_in_the_order_of_the_request(post):
    status, answer = post([{"command": ["x", str(number)], "priority": 100 + number} for number in range(300)])

    assert (status, answer["status"], answer["count"]) == (201, "submitted", 300)
    assert answer["job_ids"] == sorted(set(answer["job_ids"]))
    jobs = Job.objects.in_bulk(answer["job_ids"])
    assert [jobs[job_id].payload["command"][1] for job_id in answer["job_ids"]] == [str(n) for n in range(300)]
    assert {(job.state, job.reason, job.attempt) for job in jobs.values()} == {("pending", "scheduler_behind", 0)}
    events = JobEvent.objects.filter(job_id__in=answer["job_ids"])
    assert [(event.kind, event.actor) for event in events] == [("submitted", "ada")] * 300


def test_message_uses_the_singular_for_one_job(post):
    job = {"command": ["x"]}
    assert post([job])[1]["message"] == "1 job is in the queue"
    assert post([job, job])[1]["message"] == "2 jobs are in the queue"
    assert post([job], query="?dry_run=true")[1]["message"] == "1 job would be submitted; nothing was"


def test_job_of_a_bulk_equals_that_of_a_single_submit(post, user):
    """Detects a field that the bulk omits."""
    body = {
        "name": "n", "priority": 700, "gpu_count": 4, "gpu_memory_mb": 1000, "gpu_model": "A100|H100", "cpu_cores": 2.5,
        "memory_mb": 64, "command": ["x"], "args": ["é\t\\"], "environment": {"LR": '"'}, "gang_scheduling": True,
        "ranks": 2, "max_runtime_minutes": 1.5, "predicted_runtime_minutes": 1, "preemptible": False, "requeue": False,
        "max_retries": 3, "retry_on": ["signal"], "grace_seconds": 5, "not_before": "2030-01-01T00:00:00Z",
        "labels": {"a": "b"}, "node_selector": {"c": "d"}, "anti_affinity": "e", "topology": "numa",
        "node_affinity": {"required": [{"key": "z", "operator": "in", "values": ["a"]}],
                          "preferred": [{"key": "f", "operator": "exists", "values": [], "weight": 7}]},
        "tolerations": [{"key": "t", "operator": "Exists", "value": "", "effect": "NoSchedule"}],
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    answer = Client().post("/api/v1/jobs", msgspec.json.encode(body), content_type="application/json", headers=headers)
    _, bulk_answer = post([body])

    single = answer.json()["job"]
    [bulk] = [Client().get(f"/api/v1/jobs/{job_id}", headers=headers).json() for job_id in bulk_answer["job_ids"]]
    for field in ("id", "submitted_at", "reason"):
        del single[field], bulk[field]
    assert bulk == single


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"command": ["x"], "gpu_count": -1}, "jobs[3].gpu_count"),
        ({"command": ["x"], "gpu_count": "two"}, "jobs[3].gpu_count"),
        ({"command": "x"}, "jobs[3].command"),
        ({"command": ["x"], "gpus": 1}, "jobs[3].gpus"),
        ({"command": ["x"], "not_before": "soon"}, "jobs[3].not_before"),
        ({"command": ["x"], "secrets": ["wandb"]}, "jobs[3].secrets"),
        ({"command": ["x"], "tolerations": [{"operator": "Equal"}]}, "jobs[3].tolerations[0]"),
        ("x", "jobs[3]"),
        ({}, "jobs[3].command"),
    ],
)
def test_invalid_job_is_named_and_none_is_submitted(post, wrong, field):
    status, answer = post([{"command": ["x"]}] * 3 + [wrong] + [{"command": ["x"]}])

    assert (status, fields_of(answer)) == (400, [field])
    assert not Job.objects.exists()


def test_impossible_job_is_named_and_none_is_submitted(post):
    """A04, for each job of a bulk."""
    make_node(gpus=8)
    status, answer = post([{"command": ["x"], "gpu_count": 8}, {"command": ["x"], "gpu_count": 9}])

    assert (status, answer["code"], fields_of(answer)) == (422, "never_fits", ["jobs[1].gpu_count"])
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "impossible",
    [
        {"gpu_count": 9},
        {"gpu_memory_mb": 90_000_000},
        {"gpu_memory_mb": 90_000_000, "gpu_sharing": "shared"},
        {"gpu_model": "L4"},
        {"cpu_cores": 10_000},
        {"memory_mb": 1 << 30},
        {"node_selector": {"zone": "small"}},
        {"node_affinity": {"required": [{"key": "zone", "operator": "exists"}]}},
        {"image": "docker.io/library/alpine"},
        {"topology": "nvlink"},
        {"workload_class": "online"},
    ],
    ids=lambda fields: " ".join(fields),
)
def test_admission_checks_each_distinct_shape(post, user, impossible):
    """A04: equal shapes are checked once, different ones each."""
    make_node(gpus=8, name="large")
    make_node(gpus=1, name="small", model="NVIDIA L4")
    Node.objects.filter(name="small").update(admin_labels={"zone": "small"}, runtimes={"podman": "5.0"})
    policy.change({"online_percent": 10}, actor="test")
    possible = {"command": ["x"], "gpu_count": 2}
    status, answer = post([possible, {**possible, **impossible}])
    assert (status, answer["code"], fields_of(answer)) == (422, "never_fits", ["jobs[1].gpu_count"])
    assert not Job.objects.exists()


def test_foreign_tenant_is_refused_like_a_missing_one(post):
    make_tenant("theirs")
    answers = [post([{"command": ["x"]}, {"command": ["x"], "tenant": name}]) for name in ("theirs", "nobodys")]

    assert [(status, fields_of(answer)) for status, answer in answers] == [(404, ["jobs[1]"])] * 2
    assert not Job.objects.exists()


@pytest.mark.parametrize("wrong", [{}, {"gpu_count": "x", "priority": "x", "name": 1}])
def test_bulk_reports_at_most_100_errors_and_that_there_may_be_more(post, wrong):
    answer = post([wrong] * 500)[1]
    assert len(answer["errors"]) == 100
    assert "(and at least 99 more)" in answer["detail"]


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b'{"jobs": []}', b'{"jobs": 1}', b'{"jobs": [', b'{"jobs": [nul]}'])
def test_body_without_jobs_is_a_400(post, raw):
    """A55"""
    status, answer = post(raw)
    assert (status, bool(answer["errors"] or answer["code"] == "malformed_json")) == (400, True)


def test_bulk_of_10_001_jobs_is_refused(post):
    status, answer = post([{"command": ["x"]}] * 10_001)
    assert (status, fields_of(answer)) == (400, ["jobs"])


def test_bulk_is_refused_entirely_when_the_queue_is_full(post, settings, monkeypatch):
    settings.ENV = replace(settings.ENV, max_queue_size=5)
    monkeypatch.setattr(queue_limits, "_CACHE_SECONDS", 0.0)
    monkeypatch.setattr(queue_limits, "_PAUSE_PER_SECOND", 0.0)
    assert post([{"command": ["x"]}] * 3)[0] == 201
    status, answer = post([{"command": ["x"]}] * 3)

    assert (status, answer["code"], Job.objects.count()) == (429, "queue_full", 3)
    assert post([{"command": ["x"]}] * 2)[0] == 201


def test_dry_run_checks_all_jobs_and_submits_nothing(post):
    status, answer = post([{"command": ["x"]}] * 2, "?dry_run=true")
    assert (status, answer["status"], answer["count"], answer["job_ids"]) == (200, "would_be_submitted", 2, [])
    assert post([{"command": ["x"]}, {}], "?dry_run=true")[0] == 400
    assert not Job.objects.exists()


def test_repeated_bulk_is_submitted_once(post):
    """A05, for a bulk."""
    jobs = [{"command": ["x"]}] * 3
    first = post(jobs, **{"Idempotency-Key": "k"})
    assert post(jobs, **{"Idempotency-Key": "k"}) == first
    assert post([*jobs, {"command": ["y"]}], **{"Idempotency-Key": "k"})[0] == 409
    assert Job.objects.count() == 3


def test_query_count_does_not_grow_with_the_jobs(post, django_assert_max_num_queries):
    post([{"command": ["x"]}])
    with django_assert_max_num_queries(20):
        post([{"command": ["x"], "gpu_count": number % 3} for number in range(500)])


@pytest.mark.parametrize(("job", "is_counted"), [({}, False), ({"not_before": "2099-01-01T00:00:00Z"}, True)])
def test_bulk_is_counted_exactly_only_near_a_limit_that_its_jobs_count_against(post, settings, job, is_counted):
    far, near = 10_000_000, 10
    settings.ENV = replace(
        settings.ENV, max_queued_jobs_per_user=far, max_queued_jobs_per_tenant=far,
        max_deferred_jobs_per_user=near, max_deferred_jobs_per_tenant=near,
    )  # fmt: skip
    with CaptureQueriesContext(connection) as queries:
        assert post([{"command": ["x"], **job}] * 2)[0] == 201
    assert any("nextval('jobs_bulk_generation')" in query["sql"] for query in queries) is is_counted
