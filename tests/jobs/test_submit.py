"""Submit: accepted and refused requests; an answer means a durable job."""

import msgspec
import pytest
from django.test import Client
from django.utils.timezone import now

from gpusched.lib.db.sql import execute
from gpusched.protocol.job_request import JobRequest, validate
from jobs.listing import representation
from jobs.models import IdempotencyKey, Job, JobEvent
from tenants.models import Membership
from tests.factories import make_member, make_node, make_tenant, make_token

pytestmark = pytest.mark.django_db


@pytest.fixture
def post(user):
    """Return a function that posts a job request and returns (status, answer)."""
    token = make_token(user)

    def post(body, **headers):
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        response = Client().post(
            "/api/v1/jobs",
            raw,
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}", **headers},
        )
        return response.status_code, response.json()

    return post


def test_submitted_job_is_pending_and_has_an_event(post):
    status, answer = post({"command": ["python", "train.py"], "gpu_count": 1})

    assert status == 201
    assert answer["status"] == "submitted"
    job = Job.objects.get(pk=answer["job_id"])
    assert (job.state, job.attempt, job.tenant.name, job.name) == ("pending", 0, "nlp", "python")
    assert [event.kind for event in JobEvent.objects.filter(job=job)] == ["submitted"]
    reason = answer["job"]["reason"]
    assert (reason["code"], reason["evidence"]) == ("scheduler_behind", {})


@pytest.mark.parametrize(
    ("ended", "evidence", "sentence"),
    [
        ({"reason": "exited", "exit_code": 3}, {"exit_code": 3}, "exited with code 3"),
        (
            {"reason": "time_limit", "exit_code": 0, "max_runtime_seconds": 90},
            {"max_runtime_minutes": 1.5},
            "reached its time limit of 1.5 min",
        ),
        ({"reason": "supervisor_lost"}, {}, "its supervisor process on its node was killed"),
    ],
)
def test_evidence_has_only_the_fields_of_the_sentence(post, ended, evidence, sentence):
    """Placeholders for unknown values appear only in the sentence."""
    job_id = post({"command": ["x"]})[1]["job_id"]
    Job.objects.filter(pk=job_id).update(state="failed", ended_at=now(), **ended)
    [job] = representation.select("j.id = %s", [job_id])
    assert (job["reason"]["evidence"], job["reason"]["sentence"]) == (evidence, sentence)


def test_answer_to_a_submit_equals_the_job_as_read(post, user):
    """The answer is built without a query, so it must not drift from the stored job."""
    _, answer = post({"command": ["x"], "gpu_count": 2, "labels": {"a": "b"}, "environment": {"LR": "0.1"}})

    token = make_token(user)
    read = Client().get(f"/api/v1/jobs/{answer['job_id']}", headers={"Authorization": f"Bearer {token}"}).json()
    assert read == answer["job"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": "python train.py"}, "command"),
        ({"command": ["x"], "gpus": 1}, "gpus"),
        ({"command": ["x"], "priority": 5}, "priority"),
        ({"command": ["x"], "gpu_count": -1}, "gpu_count"),
        ({"command": ["x"], "gpu_count": "two"}, "gpu_count"),
        ({"command": ["x"], "array": {"count": 100_001}}, "array.count"),
        ({"command": ["x"], "depends_on": ["a"]}, "depends_on"),
        ({"command": ["x"], "secrets": {"wandb": "x"}}, "secrets"),
        ({"command": ["x"], "secrets": ["../etc"]}, "secrets"),
        ({"command": ["x"], "secrets": ["a", "a"]}, "secrets"),
        ({"command": ["x"], "secrets": [f"s{i}" for i in range(33)]}, "secrets"),
        ({"command": ["x"], "topology": "mesh"}, "topology"),
        ({"command": ["x"], "retry_on": ["cuda_oom", "node_lost"]}, "retry_on"),
        ({"command": ["x"], "image": "--privileged"}, "image"),
        ({"command": ["x"], "image": "ubuntu\n"}, "image"),
        ({"command": ["x"], "image": "/images/train.sif", "runtime": "podman"}, "image"),
        ({"command": ["x"], "image": "ubuntu", "runtime": "process"}, "runtime"),
        ({"command": ["x"], "image": "ubuntu", "runtime": "lxc"}, "runtime"),
        ({"command": ["x"], "runtime": "podman"}, "runtime"),
        ({"command": ["x"], "mounts": ["/data:/data"]}, "mounts"),
        ({"command": ["x"], "image": "ubuntu", "mounts": ["/data"]}, "mounts"),
        ({"command": ["x"], "image": "ubuntu", "mounts": ["/data/../etc:/data"]}, "mounts"),
        ({"command": ["x"], "image": "ubuntu", "mounts": ["/data:/data:rw,Z"]}, "mounts"),
        ({"command": ["x"], "ranks": 2}, "ranks"),
        ({"command": ["x"], "gang_scheduling": True, "gpu_count": 3, "ranks": 2}, "ranks"),
        ({"command": ["x"], "gpu_sharing": "shared", "gpu_count": 1}, "gpu_memory_mb"),
        ({"command": ["x"], "environment": {"GPUSCHED_JOB_ID": "1"}}, "environment"),
        ({"command": ["x"], "environment": {"A B": "1"}}, "environment"),
        ({"command": ["x\u0000"]}, "command"),
        ({"command": ["x"], "name": "a\u0000b"}, "name"),
        ({"command": ["x"], "not_before": "tomorrow"}, "not_before"),
        ({"command": ["x"], "workdir": "relative"}, "workdir"),
        ({"command": ["x"], "labels": {"bad key": "1"}}, "labels"),
        ({"command": ["x"], "script": "#!/bin/sh\n"}, "script"),
        ({"script": "echo no interpreter"}, "script"),
        ({}, "command"),
    ],
)
def test_invalid_request_names_the_field(post, body, field):
    """A55: a clear 4xx, one error shape, nothing written."""
    status, answer = post(body)

    assert status == 400
    assert field in [error["field"] for error in answer["errors"]]
    assert answer["error"] == answer["detail"]
    assert answer["next_step"]
    assert answer["request_id"]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b'"x"',
        b"1e999",
        b"[" * 50_000,
        b'{"a":' * 50_000,
        b'{"command":["\\ud800"]}',
    ],
)
def test_hostile_bodies_are_4xx(post, raw):
    """A55"""
    status, answer = post(raw)
    assert 400 <= status < 500
    assert answer["code"]
    assert not Job.objects.exists()


def test_empty_optional_fields_are_accepted(post):
    status, _ = post(
        {"command": ["x"], "array": None, "depends_on": [], "secrets": [], "topology": "any", "image": None}
    )
    assert status == 201


def test_tenant_is_required_when_the_user_is_in_several(post, user):
    make_member_of_second = make_tenant("vision")
    from tenants.tenancy.tenants import set_member

    set_member(make_member_of_second, user, "member")
    status, answer = post({"command": ["x"]})
    assert status == 400
    assert "nlp, vision" in answer["detail"]


def test_foreign_tenant_is_a_404_like_a_missing_one(post):
    """A08: the same 404 as for a missing tenant."""
    make_tenant("secret")
    foreign = post({"command": ["x"], "tenant": "secret"})
    unknown = post({"command": ["x"], "tenant": "nowhere"})
    assert foreign[0] == unknown[0] == 404
    assert foreign[1]["detail"].replace("secret", "") == unknown[1]["detail"].replace("nowhere", "")


class TestImpossible:
    """A04: a request that can never run is refused at submit, with the largest possible one."""

    def test_request_larger_than_any_node_is_refused(self, post):
        make_node(gpus=4)
        status, answer = post({"command": ["x"], "gpu_count": 5})
        assert (status, answer["code"]) == (422, "never_fits")
        assert "4 GPUs" in answer["detail"]
        assert not Job.objects.exists()

    def test_request_larger_than_all_nodes_is_refused(self, post):
        make_node(gpus=4)
        make_node(gpus=4)
        assert post({"command": ["x"], "gpu_count": 8, "gang_scheduling": True})[0] == 201
        status, answer = post({"command": ["x"], "gpu_count": 10, "gang_scheduling": True})
        assert (status, answer["code"]) == (422, "never_fits")

    def test_request_larger_than_the_quota_is_refused(self, post, tenant):
        make_node(gpus=8)
        tenant.quota.max_gpus = 2
        tenant.quota.save()
        status, answer = post({"command": ["x"], "gpu_count": 3})
        assert (status, answer["code"]) == (403, "quota_exceeded")
        assert "2" in answer["detail"]

    def test_request_with_more_memory_than_any_device_is_refused(self, post):
        make_node(gpus=4, memory_mb=40960)
        status, answer = post({"command": ["x"], "gpu_count": 1, "gpu_memory_mb": 80_000})
        assert (status, answer["code"]) == (422, "never_fits")

    def test_empty_cluster_accepts_any_request(self, post):
        assert post({"command": ["x"], "gpu_count": 64})[0] == 201

    def test_node_that_just_joined_counts(self, post):
        make_node(gpus=1)
        assert post({"command": ["x"], "gpu_count": 2})[0] == 422
        make_node(gpus=2)
        assert post({"command": ["x"], "gpu_count": 2})[0] == 201


@pytest.mark.django_db(transaction=True)
class TestIdempotency:
    """A03"""

    def test_same_key_returns_the_same_answer_and_makes_one_job(self, post):
        body = {"command": ["x"]}
        first = post(body, **{"Idempotency-Key": "k1"})
        second = post(body, **{"Idempotency-Key": "k1"})
        assert first == second
        assert Job.objects.count() == 1

    def test_same_key_with_another_body_is_a_conflict(self, post):
        post({"command": ["x"]}, **{"Idempotency-Key": "k1"})
        status, answer = post({"command": ["y"]}, **{"Idempotency-Key": "k1"})
        assert (status, answer["code"]) == (409, "idempotency_key_reused")
        assert Job.objects.count() == 1

    def test_key_expires_after_a_day(self, post):
        """Even before housekeeping has deleted it."""
        post({"command": ["x"]}, **{"Idempotency-Key": "k1"})
        execute("UPDATE jobs_idempotencykey SET created_at = now() - interval '25 hours'")
        assert post({"command": ["y"]}, **{"Idempotency-Key": "k1"})[0] == 201
        assert Job.objects.count() == 2
        assert post({"command": ["y"]}, **{"Idempotency-Key": "k1"})[0] == 201
        assert Job.objects.count() == 2

    def test_same_key_of_two_users_makes_two_jobs(self, post, tenant):
        post({"command": ["x"]}, **{"Idempotency-Key": "k1"})
        other = make_token(make_member(tenant))
        Client().post(
            "/api/v1/jobs",
            {"command": ["x"]},
            content_type="application/json",
            headers={"Authorization": f"Bearer {other}", "Idempotency-Key": "k1"},
        )
        assert Job.objects.count() == 2

    def test_same_key_for_another_tenant_is_a_conflict(self, user, tenant):
        """A08: a token limited to another tenant learns nothing of the job, nor gets an answer as if it had submitted one."""
        other = make_tenant("other")
        Membership.objects.create(user=user, tenant=other, role="member")
        for owner, status in ((tenant, 201), (other, 409), (tenant, 201)):
            answer = Client().post(
                "/api/v1/jobs",
                {"command": ["x"]},
                content_type="application/json",
                headers={"Authorization": f"Bearer {make_token(user, tenant=owner)}", "Idempotency-Key": "k1"},
            )
            assert answer.status_code == status
            assert ("job" in answer.json()) == (status == 201)
        assert [job.tenant for job in Job.objects.all()] == [tenant]

    def test_refused_request_does_not_use_its_key(self, post):
        assert post({"command": "x"}, **{"Idempotency-Key": "k1"})[0] == 400
        assert post({"command": ["x"]}, **{"Idempotency-Key": "k1"})[0] == 201
        assert IdempotencyKey.objects.count() == 1


def test_events_cannot_be_changed(post):
    from django.db import ProgrammingError, transaction

    post({"command": ["x"]})
    with pytest.raises(ProgrammingError, match="Cannot update"), transaction.atomic():
        JobEvent.objects.update(kind="forged")


def test_default_request_lacks_only_a_command():
    assert [problem.field for problem in validate(JobRequest())] == ["command"]
