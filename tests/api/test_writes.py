"""Writes do what is documented and nothing else: dry runs, unknown parameters, endless bodies."""

import base64
import json

import pytest
from django.conf import settings

from gpusched.env import SettingError, read
from jobs.models import Job
from tests.api.calls import call
from tests.factories import make_member, make_node, make_tenant, make_token, now, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
BODY = {"command": ["true"], "gpu_count": 0}


@pytest.fixture
def token():
    return make_token(make_member(make_tenant("nlp")))


def test_dry_run_submits_nothing(token):
    answer = call("POST", "/api/v1/jobs?dry_run=true", token, BODY)
    assert (answer.status_code, answer.json()["status"]) == (200, "would_be_submitted")
    assert not Job.objects.exists()


def test_dry_run_is_refused_like_the_submit(token):
    answer = call("POST", "/api/v1/jobs?dry_run=true", token, {**BODY, "gpu_count": -1})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "gpu_count")


@pytest.mark.parametrize("query", ["dry_run=yes", "dryrun=true", "x=1"])
def test_unknown_parameter_submits_nothing(token, query):
    """A55: a misspelt dry run must not become a real write."""
    answer = call("POST", f"/api/v1/jobs?{query}", token, BODY)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, query.split("=")[0])
    assert not Job.objects.exists()


def test_action_rejects_unknown_parameters(token):
    job = call("POST", "/api/v1/jobs", token, BODY).json()["job_id"]
    for query in ("dryrun=true", "dry_run=maybe", "dry_run=true&x=1"):
        assert call("POST", f"/api/v1/jobs/{job}/cancel?{query}", token, None).status_code == 400
    assert Job.objects.get(pk=job).state == "pending"


def test_body_beyond_the_limit_is_refused(token, monkeypatch):
    """A55: 413, with the limit in the sentence."""
    monkeypatch.setattr(settings, "DATA_UPLOAD_MAX_MEMORY_SIZE", 1 << 20)
    answer = call("POST", "/api/v1/jobs", token, {**BODY, "environment": {"A": "x" * (1 << 20)}})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "1 MiB" in answer.json()["error"]


def test_unknown_policy_is_named_at_the_start():
    with pytest.raises(SettingError, match=r"GPUSCHED_POLICY='fairr'.*fair or priority"):
        read({"GPUSCHED_POLICY": "fairr"})


@pytest.mark.parametrize("parts", [["a", "b", "c"], [1, 2, "c"], [None, None, None], [[], {}, 1]])
def test_forged_cursor_is_rejected(token, parts):
    """A55: not a 500 out of the database."""
    cursor = base64.urlsafe_b64encode(json.dumps(["queue", *parts]).encode()).decode().rstrip("=")
    assert call("GET", f"/api/v1/queue?cursor={cursor}", token).status_code == 400


@pytest.mark.parametrize("report", [{"exit_code": 2**40}, {"log_bytes": 2**70}, {"detail": "a" * 10_000}])
def test_impossible_agent_message_never_fails_the_server(report):
    """A55: by HTTP, with the credential of a node."""
    node = make_node(gpus=1)
    job = submit(make_member(tenant := make_tenant("nlp")), tenant, gpu_count=1)
    run_cycle()
    [key] = node.start_all()
    ended = {"kind": "ended", "key": key, "at": now(), "reason": "exited", **report}
    body = {"seq": 9, "at": now(), "boot_id": "boot-1", "held": [key], "running": [], "reports": [ended]}
    answer = call("POST", "/agent/sync", node.credential, body)
    assert answer.status_code in (200, 400), job
