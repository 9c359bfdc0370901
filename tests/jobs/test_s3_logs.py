"""Logs, and large inputs and results of tasks, on an S3 server: moto's, over HTTP, by the class that docs/settings.md
names (A40)."""

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from django.core.files.storage import storages
from django.test import Client
from django.utils import timezone

from gpusched.management.server_doctor import check_storage
from jobs.logs import chunks, store
from jobs.models import Attempt
from serving import payloads
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit
from tests.system.stack import free_port
from tests.waiting import wait_for

MIB = 1 << 20
REGION = "us-east-1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server."""
    port = free_port()
    log = tmp_path_factory.mktemp("s3") / "log"
    program = Path(sys.executable).with_name("moto_server")
    with (
        log.open("wb") as output,
        subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output) as process,
    ):
        try:
            wait_for(lambda: b"Running on" in log.read_bytes(), 60, "the S3 server")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture
def storage(server: str, settings: Any, request: pytest.FixtureRequest) -> Any:
    bucket = f"bucket-{abs(hash(request.node.name))}"
    secrets = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    boto3.client("s3", endpoint_url=server, region_name=REGION, **secrets).create_bucket(Bucket=bucket)
    options = {
        "bucket_name": bucket, "endpoint_url": server, "region_name": REGION, "access_key": "key",
        "secret_key": "secret",
    }  # fmt: skip
    on_s3 = {"BACKEND": "storages.backends.s3.S3Storage", "OPTIONS": options}
    settings.STORAGES = {**settings.STORAGES, "logs": on_s3, "tasks": on_s3}
    return storages["logs"]


def full_log(piece_bytes: int = MIB) -> bytes:
    data = b""
    while piece := store.read(1, 1, 0, len(data), piece_bytes).data:
        data += piece
    return data


def test_repeated_late_and_resized_writes_make_one_log(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With merges in between; no byte is doubled or missing."""
    monkeypatch.setattr(chunks, "MAX_SMALL", 8)
    chance = random.Random(1)
    data, size = chance.randbytes(6_000), 0
    while size < len(data):
        offset = max(0, size + chance.randrange(-300, 60))
        size = store.append(1, 1, 0, offset, data[offset : offset + chance.randrange(400)])
    assert full_log(1000) == data
    assert len(storage.listdir("0/1/1.0.log")[1]) <= 10


def test_missing_log_is_empty_and_a_dropped_one_leaves_nothing(storage: Any) -> None:
    assert store.read(1, 1, 0, -10, 10) == store.LogChunk(b"", 0, 0, 0)
    store.drop(1, 1, 0)
    for number in range(3):
        store.append(1, 1, 0, number, b"x")
    store.drop(1, 1, 0)
    assert storage.listdir("")[0] == []


def test_end_of_a_log_of_100_mb_takes_the_objects_at_its_end_alone(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A40: the tail first."""
    piece = b"x" * (4 * MIB)
    for number in range(25):
        assert store.append(1, 1, 0, number * len(piece), piece) == (number + 1) * len(piece)
    store.append(1, 1, 0, 25 * len(piece), b"the end\n")
    opened: list[str] = []
    real = type(storage).open

    def noted(self: Any, name: str, mode: str = "rb") -> Any:
        opened.append(name)
        return real(self, name, mode)

    monkeypatch.setattr(type(storage), "open", noted)
    tail = store.read(1, 1, 0, -(MIB // 16), MIB)
    assert (tail.size, tail.data[-9:]) == (25 * len(piece) + 8, b"xthe end\n")
    assert len(opened) == 2


def test_reader_gets_each_byte_while_objects_are_merged(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge deletes objects that a reader has just listed."""
    monkeypatch.setattr(chunks, "MAX_SMALL", 4)
    whole = b"".join(b"%05d\n" % number for number in range(60))
    wrong: list[object] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                data = store.read(1, 1, 0, 0, MIB).data
            except Exception as error:  # noqa: BLE001 - the test reports it
                wrong.append(error)
                return
            if not whole.startswith(data):
                wrong.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(60):
            assert store.append(1, 1, 0, number * 6, whole[number * 6 : number * 6 + 6]) == (number + 1) * 6
    finally:
        is_over.set()
        reader.join(60)
    assert not wrong
    assert full_log() == whole


@pytest.mark.django_db(transaction=True)
def test_log_is_downloaded_from_s3_by_rest(storage: Any) -> None:
    tenant = make_tenant("nlp")
    user = make_member(tenant)
    node = make_node()
    job = submit(user, tenant)
    run_cycle()
    node.end(*node.start_all())
    text = b"".join(b"line %d\n" % number for number in range(3_000))
    store.append(job, 1, 0, 0, text)
    Attempt.objects.filter(job_id=job).update(ended_at=timezone.now())
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    answer = Client().get(f"/api/v1/jobs/{job}/logs?tail=8", headers=headers)
    assert (answer.status_code, answer.content, answer["X-Log-Size"]) == (200, text[-8:], str(len(text)))


@pytest.mark.django_db
def test_inputs_and_results_of_tasks_are_stored_swept_and_deleted(storage: Any) -> None:
    data = random.Random(2).randbytes(3 * MIB)
    names = [payloads.store(data) for _ in range(2)]
    assert payloads.read(names[0]) == data
    assert b"".join(payloads.pieces(names[1])) == data
    payloads.delete([names[0]])
    assert payloads.sweep(timezone.now() + timedelta(hours=3)) == 1
    with pytest.raises(OSError, match="does not exist"):
        payloads.read(names[1])


def test_doctor_names_a_bucket_that_is_missing(storage: Any) -> None:
    [found] = check_storage("S3")
    assert found.level == "ok" and storage.listdir("")[0] == []
    storage.connection.meta.client.delete_bucket(Bucket=storage.bucket_name)
    [found] = check_storage("S3")
    assert found.level == "fail" and "NoSuchBucket" in found.says
