"""The disk of logs and large tasks is full, or their object store does not answer (A40): only what needs it fails."""

import json
import threading
import time
from dataclasses import replace

import pytest
from django.contrib.sessions.models import Session
from django.core.files.storage import Storage
from django.test import Client

from frontend.pages.job import rows
from gpusched.lib.db.sql import execute
from jobs.logs import store
from scheduling.worker import tasks
from serving import payloads
from serving.models import InferenceRequest
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.serving.requests import make_endpoint

pytestmark = pytest.mark.django_db(transaction=True)


class Away(Exception):
    """The errors of object stores have no class in common."""


class FailingStorage(Storage):
    def _fail(self, *_):
        raise Away

    _save = _open = delete = listdir = exists = size = _fail


@pytest.fixture(autouse=True)
def _outage(settings):
    failing = {"BACKEND": f"{__name__}.FailingStorage"}
    settings.STORAGES = {**settings.STORAGES, "logs": failing, "tasks": failing}


@pytest.fixture
def user():
    return make_member(make_tenant("nlp"), name="ada")


@pytest.fixture
def headers(user):
    return {"Authorization": f"Bearer {make_token(user)}"}


def is_refused(answer):
    return answer.status_code == 503 and answer.json()["code"] == "storage_unavailable" and answer["Retry-After"] == "5"


def test_job_goes_on_and_its_log_is_refused_for_now(user, headers):
    node = make_node(gpus=1)
    job_id = submit(user, user.memberships.get().tenant)
    run_cycle()
    [key] = node.start_all()
    agent = {"Authorization": f"Bearer {node.credential}"}
    sent = Client().post(f"/agent/logs?key={key}&offset=0", b"one\n", "application/octet-stream", headers=agent)
    assert is_refused(sent)
    assert is_refused(Client().get(f"/api/v1/jobs/{job_id}/logs", headers=headers))
    assert is_refused(Client().get(f"/api/v1/jobs/{job_id}/logs?download=true", headers=headers))
    browser = Client()
    browser.force_login(user)
    assert browser.get(f"/jobs/{job_id}/").status_code == 200
    node.end(key, log_bytes=4)
    assert Client().get(f"/api/v1/jobs/{job_id}", headers=headers).json()["state"] == "completed"


def test_storage_that_hangs_does_not_hold_up_the_pages(user, monkeypatch):
    """One thread loads the rows of all pages: one open page of a job froze those of all users."""
    answers = threading.Event()
    node = make_node(gpus=1)
    job_id = submit(user, user.memberships.get().tenant)
    run_cycle()
    node.start_all()
    monkeypatch.setattr(store, "size_of", lambda *log: answers.wait(20) and 4)
    monkeypatch.setattr(rows, "SIZES_SECONDS", 0.01)
    began = time.monotonic()
    assert rows.load([job_id])[job_id]["rows"]["log:1.0"]["size"] == 0
    assert time.monotonic() - began < 10
    answers.set()
    monkeypatch.setattr(rows, "SIZES_SECONDS", 10)
    assert rows.load([job_id])[job_id]["rows"]["log:1.0"]["size"] == 4


def test_large_task_is_refused_and_a_small_one_accepted(user, headers):
    make_endpoint(user.memberships.get().tenant, user)
    path = "/api/v1/tasks?endpoint=embed"
    assert is_refused(Client().post(path, bytes(300 << 10), "application/octet-stream", headers=headers))
    assert not InferenceRequest.objects.exists()
    small = Client().post(path, json.dumps("small"), "application/json", headers=headers)
    assert small.status_code == 201


def test_file_that_cannot_be_deleted_is_left_to_a_later_sweep():
    payloads.delete(["tasks/2026010100/a"])


def test_other_old_rows_are_deleted_when_no_log_can_be(user, settings):
    """An object store may refuse deletions for good."""
    node = make_node(gpus=1)
    submit(user, user.memberships.get().tenant)
    run_cycle()
    node.end(*node.start_all())
    execute("UPDATE jobs_attempt SET ended_at = now() - interval '40 days'")
    settings.ENV = replace(settings.ENV, log_retention_days=30)
    Session.objects.create(session_key="x", session_data="", expire_date="2020-01-01T00:00:00Z")
    with pytest.raises(Away):
        tasks.drop_old()
    assert not Session.objects.exists()
