"""Inputs and results as bytes: in the row up to 256 KiB, else in files that live as long as their task."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.files.storage import storages
from django.db import OperationalError
from django.test import Client

from gpusched.lib.db.sql import execute
from gpusched.protocol.batches import Body, Decoder, Frame, encode, encode_parts
from serving import payloads
from serving.batching import transfers
from serving.former import MAX_BATCH_BYTES
from serving.models import InferenceRequest
from serving.requests import claims, endings, results
from serving.requests import submit as submits
from serving.requests.results import Outcome
from serving.requests.submit import NewRequest, submit
from tenants.models import BucketScope, BucketUse, TokenBucket
from tests.factories import identity_for, make_member, make_tenant, make_token
from tests.serving.replicas import dispatching, ended, until
from tests.serving.requests import claim, make_endpoint
from tests.serving.test_former import queue, run, waiting

pytestmark = pytest.mark.django_db
KIB = 1 << 10
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@pytest.fixture(autouse=True)
def storage(tmp_path, monkeypatch):
    """Files of a test of its own."""
    storage = payloads.TaskFiles()
    storage.base_location = str(tmp_path)
    monkeypatch.setattr(payloads, "_storage", lambda: storage)
    return storage


def upload(token, data, kind="application/octet-stream", query="endpoint=embed", key=""):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind} | ({"Idempotency-Key": key} if key else {})
    return Client().generic("POST", f"/api/v1/tasks?{query}", data, content_type=kind, headers=headers)


def stored(folder):
    return sorted(path for path in (Path(folder) / "tasks").rglob("*") if path.is_file())


def send(endpoint, user, *datas, kind="application/octet-stream"):
    return submit(endpoint, [NewRequest(data, kind) for data in datas], identity_for(user)).ids


@pytest.mark.parametrize("size", [300, 256 * KIB, 300 * KIB, 3 << 20])
def test_body_of_any_type_is_the_input(endpoint, token, tmp_path, size):
    data = (PNG * (size // len(PNG) + 1))[:size]
    answer = upload(token, data, "image/png", "endpoint=embed&units=2.5")
    assert answer.status_code == 201, answer.content
    [task] = answer.json()["items"]
    assert (task["input_bytes"], task["cost"]) == (size, 2.5)
    [claimed] = claim([task["id"]])
    [loaded], _ = asyncio.run(transfers.load([claimed]))
    assert (loaded.payload, loaded.payload_type) == (data, "image/png")
    assert len(stored(tmp_path)) == (size > 256 * KIB)


def test_large_json_is_refused_in_an_envelope_and_accepted_as_the_body(endpoint, token, tmp_path):
    """300 KiB of JSON: the refusal names the way that works."""
    text = json.dumps("x" * (300 * KIB)).encode()
    envelope = b'{"endpoint": "embed", "input": %s}' % text
    refused = upload(token, envelope, "application/json", "")
    assert refused.status_code == 400
    assert "POST /tasks?endpoint=" in refused.json()["detail"]
    [task] = upload(token, text, "application/json").json()["items"]
    assert InferenceRequest.objects.get(pk=task["id"]).payload_type == "application/json"
    assert [path.read_bytes() for path in stored(tmp_path)] == [text]


@pytest.mark.parametrize(
    ("data", "kind", "query", "status", "word"),
    [
        (b"", "image/png", "endpoint=embed", 400, "empty"),
        (b"{", "application/json", "endpoint=embed", 400, "valid JSON"),
        (b"\xff", "application/json", "endpoint=embed", 400, "valid JSON"),
        (b"a=b", "application/x-www-form-urlencoded", "endpoint=embed", 415, "Content-Type"),
        (b"data", "nonsense", "endpoint=embed", 415, "Content-Type"),
        (b"data", "image/png", "endpoint=embed&units=nan", 400, "units"),
        (b"data", "image/png", "endpoint=embed&units=0", 400, "units"),
        (b"data", "image/png", "endpoint=embed&units=1e-318", 400, "units"),
        (b"data", "image/png", "endpoint=other", 404, "other"),
        (b"data", "image/png", "endpoint=embed&size=1", 400, "size"),
        (b"x" * ((1 << 20) + 1), "image/png", "endpoint=embed", 413, "1 MiB (GPUSCHED_TASK_MAX_MB)"),
    ],
)
def test_wrong_upload_is_refused_by_name_and_stores_nothing(
    endpoint, token, tmp_path, monkeypatch, data, kind, query, status, word
):
    monkeypatch.setattr(payloads, "max_bytes", lambda: 1 << 20)
    answer = upload(token, data, kind, query)
    assert (answer.status_code, word in answer.json()["detail"]) == (status, True), answer.content
    assert not InferenceRequest.objects.exists()
    assert stored(tmp_path) == []


def test_body_above_the_limit_of_its_address_is_a_413(endpoint, token, monkeypatch):
    monkeypatch.setattr(settings, "UPLOAD_MAX_BYTES", {"/api/v1/tasks": 2 << 20})
    answer = upload(token, b"x" * (3 << 20))
    assert (answer.status_code, "2 MiB" in answer.json()["detail"]) == (413, True)


def test_refused_submit_leaves_no_file(endpoint, tenant, token, tmp_path):
    TokenBucket.objects.create(
        tenant=tenant, scope=BucketScope.USER, limits=BucketUse.TASKS, rate_per_second=0, burst=1
    )
    data = b"x" * (300 * KIB)
    assert [upload(token, data).status_code for _ in range(2)] == [201, 429]
    assert len(stored(tmp_path)) == 1


@pytest.mark.django_db(transaction=True)
def test_repeated_upload_is_stored_once(tmp_path):
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    make_endpoint(tenant, user)
    token = make_token(user)
    first, second = (upload(token, b"x" * (20 << 20), key="one") for _ in range(2))
    assert (first.status_code, second.content) == (201, first.content)
    assert upload(token, b"y" * (20 << 20), key="one").status_code == 409
    assert len(stored(tmp_path)) == 1


@pytest.mark.django_db(transaction=True)
def test_replica_gets_bytes_and_returns_bytes_of_any_size(replicas, tmp_path):
    """A65: the batch is sent over a stream whose reader may be slow."""
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    endpoint = make_endpoint(tenant, user)
    datas = [PNG, b"grow" + bytes(100 * KIB), os.urandom(5 << 20), os.urandom(300 * KIB)]

    async def serve_all():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            await until(lambda: dispatcher.warm_replicas() != [])
            ids = await sync_to_async(send)(endpoint, user, *datas)
            dispatcher.wake()
            await until(ended(ids))
            return ids

    ids = asyncio.run(serve_all())
    token = make_token(user)
    found = [content_of(f"/api/v1/tasks/{number}/result", token) for number in ids]
    assert found == [PNG[::-1], datas[1][::-1] * 40, datas[2][::-1], datas[3][::-1]]
    rows = InferenceRequest.objects.filter(pk__in=ids).order_by("id")
    assert [row.result_bytes for row in rows] == [len(result) for result in found]
    assert [bool(row.result_file) for row in rows] == [False, True, True, True]
    shown = Client().get(f"/api/v1/tasks/{ids[1]}", headers={"Authorization": f"Bearer {token}"}).json()["items"][0]
    assert (shown["output"], shown["output_bytes"]) == (None, len(found[1]))


def content_of(path, token):
    answer: Any = Client().get(path, headers={"Authorization": f"Bearer {token}"})
    if not answer.streaming:
        return answer.content

    async def read():
        return b"".join([part async for part in answer.streaming_content])

    return asyncio.run(read())


@pytest.mark.django_db(transaction=True)
def test_result_above_the_limit_fails_alone_and_names_it(replicas, monkeypatch):
    monkeypatch.setattr(payloads, "max_bytes", lambda: 1 << 20)
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    endpoint = make_endpoint(tenant, user)

    async def serve_all():
        async with dispatching(replicas, endpoint, 1) as dispatcher:
            await until(lambda: dispatcher.warm_replicas() != [])
            ids = await sync_to_async(send)(endpoint, user, b"small", b"grow" + bytes(100 * KIB))
            dispatcher.wake()
            await until(ended(ids))

    asyncio.run(serve_all())
    small, large = InferenceRequest.objects.order_by("id")
    assert (small.state, large.state, large.error_code) == ("completed", "failed", "result_too_large")
    assert "1 MiB (GPUSCHED_TASK_MAX_MB)" in large.error


def test_payload_that_cannot_be_read_fails_its_request_alone(endpoint, user, tmp_path):
    lost, kept = send(endpoint, user, b"a" * (300 * KIB), b"b" * (300 * KIB))
    Path(storages_path(tmp_path, lost)).unlink()
    loaded, failed = asyncio.run(transfers.load(claim([lost, kept])))
    assert [request.id for request in loaded] == [kept]
    assert [(outcome.id, outcome.error_code) for outcome in failed] == [(lost, "input_lost")]


def test_payload_in_a_storage_that_does_not_answer_fails_its_request_alone(endpoint, user, monkeypatch):
    def fail(name):
        raise StorageError("no answer")

    large, small = send(endpoint, user, b"a" * (300 * KIB), b"b")
    requests = claim([large, small])
    monkeypatch.setattr(payloads, "read", fail)
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 0.1)
    loaded, failed = asyncio.run(transfers.load(requests))
    assert [request.id for request in loaded] == [small]
    assert [(outcome.id, outcome.error_code) for outcome in failed] == [(large, "input_lost")]


def storages_path(folder, number):
    return Path(folder) / InferenceRequest.objects.get(pk=number).payload_file


class StorageError(Exception):
    """As an object store raises it."""


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), StorageError("no answer")])
def test_result_that_cannot_be_stored_fails_its_request(monkeypatch, error):
    def fail(data):
        raise error

    monkeypatch.setattr(payloads, "store", fail)
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 0.1)
    [outcome] = asyncio.run(transfers.store([Outcome(1, 1, b"x" * (300 * KIB))]))
    assert (outcome.error_code, outcome.result) == ("result_not_stored", None)
    assert str(error) in outcome.error


def test_storage_that_fails_for_a_moment_costs_no_task(endpoint, user, monkeypatch):
    """As an object store that asks to slow down, or a file server that restarts."""

    def at_first_failing(work):
        errors = [StorageError("slow down"), OSError(116, "Stale file handle")]

        def maybe(argument):
            if errors:
                raise errors.pop()
            return work(argument)

        return maybe

    requests = claim(send(endpoint, user, b"a" * (300 * KIB), b"b"))
    for name in ("read", "store"):
        monkeypatch.setattr(payloads, name, at_first_failing(getattr(payloads, name)))
    loaded, failed = asyncio.run(transfers.load(requests))
    assert ([len(request.payload) for request in loaded], failed) == ([300 * KIB, 1], [])
    [outcome] = asyncio.run(transfers.store([Outcome(1, 1, b"x" * (300 * KIB))]))
    assert (outcome.error_code, payloads.read(outcome.result_file)) == ("", b"x" * (300 * KIB))


def test_files_are_deleted_with_their_task(endpoint, user, tmp_path):
    old, new = send(endpoint, user, b"a" * (300 * KIB), b"b" * (300 * KIB))
    for claimed in claim([old, new]):
        [outcome] = asyncio.run(transfers.store([Outcome(claimed.id, claimed.attempt, b"r" * (300 * KIB))]))
        results.record([outcome])
    assert len(stored(tmp_path)) == 4
    execute("UPDATE serving_inferencerequest SET ended_at = ended_at - interval '25 h' WHERE id = %s", [old])
    assert endings.forget(24.0) == 1
    assert len(stored(tmp_path)) == 2


def test_sweep_deletes_only_old_files_without_a_task(endpoint, user, tmp_path):
    [number] = send(endpoint, user, b"a" * (300 * KIB))
    [claimed] = claim([number])
    [outcome] = asyncio.run(transfers.store([Outcome(number, claimed.attempt, b"r" * (300 * KIB))]))
    results.record([outcome])
    orphan = Path(tmp_path) / payloads.store(b"orphan")
    now = datetime.now(UTC)
    assert payloads.sweep(now + timedelta(minutes=59)) == 0
    assert payloads.sweep(now + timedelta(hours=3)) == 1
    assert (orphan.exists(), len(stored(tmp_path))) == (False, 2)
    InferenceRequest.objects.all().delete()
    assert payloads.sweep(now + timedelta(hours=3)) == 2
    assert list((Path(tmp_path) / "tasks").iterdir()) == []


def test_task_whose_commit_was_not_confirmed_keeps_its_input(endpoint, user, monkeypatch):
    """The database may have committed before the connection broke: then the task runs."""
    insert = submits._insert

    def insert_without_answer(*values):
        insert(*values)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(submits, "_insert", insert_without_answer)
    with pytest.raises(OperationalError):
        send(endpoint, user, b"a" * (300 * KIB))
    loaded, failed = asyncio.run(transfers.load(claim([InferenceRequest.objects.get().pk])))
    assert ([len(request.payload) for request in loaded], failed) == ([300 * KIB], [])


CRASH = """
import django, os, signal
django.setup()
from serving import payloads
from django.conf import settings
settings.DATA_DIR = os.environ["FOLDER"]
payloads.store(b"x" * 300000)
os.kill(os.getpid(), signal.SIGKILL)  # as if before the row is committed
"""


def test_file_of_a_process_killed_before_its_row_is_swept(tmp_path):
    environment = {**os.environ, "FOLDER": str(tmp_path), "DJANGO_SETTINGS_MODULE": "gpusched.settings"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", CRASH], env=environment, cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(stored(tmp_path)) == 1
    assert payloads.sweep(datetime.now(UTC) + timedelta(hours=3)) == 1
    assert stored(tmp_path) == []


def test_large_payloads_do_not_share_a_batch_beyond_its_bytes():
    half = MAX_BATCH_BYTES // 2
    requests = [waiting(n, size=half) for n in range(3)] + [waiting(3, size=2 * MAX_BATCH_BYTES), waiting(4)]
    assert [batch.requests for batch in run(queue(requests, is_draining=True), 4)] == [(0, 1), (2,), (3,), (4,)]


def test_heads_of_the_queue_have_the_size_of_their_payload(endpoint, user):
    send(endpoint, user, b"a" * 10, b"b" * (300 * KIB))
    assert [request.size for request in claims.waiting([endpoint.pk], 8, 0.0)[endpoint.pk]] == [10, 300 * KIB]


def test_frame_of_large_bodies_is_not_copied_and_decodes_to_the_same():
    bodies = [Body(b"small"), Body(bytes(300 * KIB)), Body(b"x"), Body(b"y" * (400 * KIB))]
    frame = Frame("batch", {"batch": 1}, bodies)
    parts = list(encode_parts(frame))
    assert [len(part) for part in parts[1:]] == [300 * KIB, 1, 400 * KIB]
    assert parts[1] is bodies[1].data
    assert b"".join(parts) == encode(frame)
    assert list(Decoder().feed(encode(frame))) == [frame]


def test_default_storage_is_the_data_directory():
    assert isinstance(storages["tasks"], payloads.TaskFiles)
    assert str(storages["tasks"].base_location) == str(settings.DATA_DIR)


def test_dry_run_of_a_large_input_leaves_no_file(endpoint, token, tmp_path):
    answer = upload(token, PNG * 2000, "image/png", "endpoint=embed&dry_run=true")
    assert (answer.status_code, answer.json()["items"][0]["input_bytes"]) == (200, len(PNG) * 2000)
    assert stored(tmp_path) == []


def test_key_with_another_media_type_is_another_request(endpoint, token):
    first = upload(token, b"1", "image/png", key="k")
    assert upload(token, b"1", "image/png", key="k").content == first.content
    reused = upload(token, b"1", "application/json", key="k")
    assert (reused.status_code, reused.json()["code"]) == (409, "idempotency_key_reused")
