"""Logs on the server (A40): on files and on object storages, bounded, read from the end, deleted by age."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.test import AsyncClient, Client
from django.utils import timezone

from gpusched import env
from gpusched.lib.web.deferred import BrokenResponse
from jobs.api.logs import downloads
from jobs.logs import store
from jobs.models import Attempt
from scheduling.worker import tasks
from tests.factories import make_member, make_node, make_tenant, make_token, run_cycle, submit

FILES = {"BACKEND": "jobs.logs.files.LogFiles"}
MEMORY = {"BACKEND": "django.core.files.storage.InMemoryStorage"}


@pytest.fixture(params=[FILES, MEMORY], ids=["files", "objects"])
def storage(request, settings, tmp_path):
    settings.DATA_DIR = tmp_path
    settings.STORAGES = {**settings.STORAGES, "logs": request.param}


def full_log(job_id=1):
    data = b""
    while piece := store.read(job_id, 1, 0, len(data), 1000).data:
        data += piece
    return data


def test_repeated_late_and_resized_writes_make_one_log(storage):
    """A40"""
    chance = random.Random(1)
    data = chance.randbytes(20_000)
    size = 0
    while size < len(data):
        offset = max(0, size + chance.randrange(-300, 60))
        piece = data[offset : offset + chance.randrange(200)]
        size = store.append(1, 1, 0, offset, piece)
        assert store.size_of(1, 1, 0) == size
    assert full_log() == data
    assert store.append(1, 1, 1, 0, b"another rank") == 12
    assert full_log() == data


def test_small_chunks_are_merged(settings):
    settings.STORAGES = {**settings.STORAGES, "logs": MEMORY}
    for number in range(500):
        store.append(1, 1, 0, number * 10, b"%09d\n" % number)
    from django.core.files.storage import storages

    assert len(storages["logs"].listdir("0/1/1.0.log")[1]) < 100
    assert full_log() == b"".join(b"%09d\n" % number for number in range(500))


def test_missing_log_is_empty_and_deleting_it_is_harmless(storage):
    assert store.read(1, 1, 0, -10, 10) == store.LogChunk(b"", 0, 0, 0)
    assert store.append(1, 1, 0, 0, b"") == 0
    store.drop(1, 1, 0)


def test_deleted_logs_leave_no_directories(settings, tmp_path):
    settings.DATA_DIR = tmp_path
    settings.STORAGES = {**settings.STORAGES, "logs": FILES}
    logs = [(1, 1, 0), (1, 1, 1), (2, 1, 0)]
    for log in logs:
        store.append(*log, 0, b"x")
    store.drop(*logs[0])
    assert store.read(*logs[1], 0, 10).data == b"x"
    for log in logs[1:]:
        store.drop(*log)
    assert list((tmp_path / "logs").iterdir()) == []


def test_tail_is_read_without_the_bytes_before_it(storage):
    """A40: the tail first."""
    store.append(1, 1, 0, 0, b"x" * 5000 + b"the end\n")
    assert store.read(1, 1, 0, -8, 100) == store.LogChunk(b"the end\n", 5000, 5008, 5008)
    assert store.read(1, 1, 0, -9999, 3).offset == 0
    assert store.read(1, 1, 0, 9999, 3) == store.LogChunk(b"", 5008, 5008, 5008)


def test_log_beyond_the_limit_is_replaced_by_one_note(storage, settings, monkeypatch):
    """An agent that does not cut its logs must neither send forever nor fill the disk."""
    settings.ENV = env.Env(log_max_mb=1)
    monkeypatch.setattr(store, "_SPARE_BYTES", 0)
    data = b"0123456789abcdef" * 100_000
    size = 0
    while size < len(data):
        after = store.append(1, 1, 0, size, data[size : size + 300_000])
        assert after > size
        size = after
    stored = full_log()
    assert stored.startswith(data[: 1 << 20]) and stored[1 << 20 :].decode().startswith(
        "\n[gpusched: no more than 1 MiB"
    )
    assert stored.count(b"[gpusched:") == 1
    assert store.min_complete_size(len(data)) <= len(stored)


@pytest.mark.django_db(transaction=True)
class TestOverRest:
    @pytest.fixture
    def ended(self):
        """Return the id of an ended job, and its submitter's headers."""
        tenant = make_tenant()
        user = make_member(tenant)
        node = make_node(gpus=1)
        job_id = submit(user, tenant)
        run_cycle()
        store.append(job_id, 1, 0, 0, b"one\ntwo\nthree\n")
        node.end(*node.start_all(), log_bytes=14)
        return job_id, {"Authorization": f"Bearer {make_token(user)}"}

    def test_tail_returns_the_last_bytes(self, storage, ended):
        job_id, headers = ended
        answer = Client().get(f"/api/v1/jobs/{job_id}/logs?tail=6", headers=headers)
        assert (answer.content, answer["X-Log-Offset"], answer["X-Log-Complete"]) == (b"three\n", "8", "true")
        assert Client().get(f"/api/v1/jobs/{job_id}/logs?tail=0", headers=headers).status_code == 400

    @pytest.mark.parametrize(("days", "status"), [(0, 200), (30, 200), (7, 410)])
    def test_logs_are_deleted_by_their_age_when_configured(self, storage, settings, ended, days, status):
        job_id, headers = ended
        Attempt.objects.update(ended_at=timezone.now() - timedelta(days=8))
        settings.ENV = env.Env(log_retention_days=days)
        tasks.drop_old()
        answer = Client().get(f"/api/v1/jobs/{job_id}/logs", headers=headers)
        assert answer.status_code == status
        assert store.size_of(job_id, 1, 0) == (0 if status == 410 else 14)
        assert tasks.drop_old() == 0


@pytest.mark.django_db(transaction=True)
def test_log_of_an_attempt_that_a_restore_has_undone_is_replaced(storage):
    """The attempt after the restore has the number of that one, and its output the same name."""
    node, job_id = make_node(gpus=1), submit(make_member(tenant := make_tenant()), tenant)
    run_cycle()
    [key] = node.start_all()

    def send(data: bytes) -> int:
        answer = Client().post(
            f"/agent/logs?key={key}&offset=0", data, "application/octet-stream",
            headers={"Authorization": f"Bearer {node.credential}"},
        )  # fmt: skip
        return int(answer.json()["size"])

    assert (send(b""), send(b"first run\n"), send(b"")) == (0, 10, 10)
    Attempt.objects.update(scheduled_at=timezone.now() + timedelta(minutes=1))
    assert (send(b""), send(b"next\n")) == (0, 5)
    assert full_log(job_id) == b"next\n"


@pytest.mark.django_db
def test_killed_deletion_of_logs_keeps_most_of_its_progress(monkeypatch):
    """An object storage may take longer for all old logs than a task may last."""
    at, job_id = timezone.now() - timedelta(days=8), submit(make_member(tenant := make_tenant()), tenant)
    old = {"job_id": job_id, "scheduled_at": at, "ended_at": at, "reason": "exited"}
    Attempt.objects.bulk_create(Attempt(number=number, **old) for number in range(1, 251))
    dropped: list[int] = []

    def drop(_: int, number: int, rank: int) -> None:
        dropped.append(number)
        if len(dropped) == 250:
            raise SystemExit("the task is killed")

    monkeypatch.setattr(store, "drop", drop)
    with pytest.raises(SystemExit):
        store.drop_old(7)
    assert Attempt.objects.filter(log_dropped_at__isnull=False).count() == 200
    assert store.drop_old(7) == 50


@pytest.mark.django_db(transaction=True)
def test_download_returns_the_full_log_as_a_file(storage):
    """A40: every byte, in chunks, with a length and a name."""
    tenant = make_tenant()
    user = make_member(tenant)
    node = make_node()
    job_id = submit(user, tenant)
    run_cycle()
    node.start_all()
    data = random.Random(2).randbytes(2 * store.MAX_READ + 5)
    for offset in range(0, len(data), store.MAX_READ):
        store.append(job_id, 1, 0, offset, data[offset : offset + store.MAX_READ])
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    path = f"/api/v1/jobs/{job_id}/logs"

    async def read():
        response: Any = await AsyncClient().get(f"{path}?download=true", headers=headers)
        return response, [piece async for piece in response.streaming_content]

    async def read_while_it_is_deleted():
        response: Any = await AsyncClient().get(f"{path}?download=true", headers=headers)
        async for _ in response.streaming_content:
            await sync_to_async(store.drop)(job_id, 1, 0)

    response, pieces = async_to_sync(read)()
    assert b"".join(pieces) == data
    assert [len(piece) for piece in pieces] == [store.MAX_READ, store.MAX_READ, 5]
    assert response["Content-Length"] == str(len(data))
    assert response["Content-Disposition"] == f'attachment; filename="job-{job_id}-attempt-1-rank-0.log"'
    with pytest.raises(BrokenResponse):  # closes the connection: the client would wait for the rest
        async_to_sync(read_while_it_is_deleted)()
    stranger = {"Authorization": f"Bearer {make_token(make_member(make_tenant()))}"}
    assert Client().get(f"{path}?download=true", headers=stranger).status_code == 404
    Attempt.objects.update(log_dropped_at=timezone.now())
    assert Client().get(f"{path}?download=true", headers=headers).status_code == 410


@pytest.mark.django_db
def test_downloads_are_limited_in_total_and_per_user(monkeypatch):
    tenant = make_tenant()
    user = make_member(tenant, name="ada")
    job_id = submit(user, tenant)
    headers = {"Authorization": f"Bearer {make_token(user)}"}
    for now, status in (({"ada": 2}, 429), ({"grace": 2}, 200), ({"a": 2, "b": 2, "c": 2, "d": 2}, 429)):
        monkeypatch.setattr(downloads, "now", Counter(now))
        response = Client().get(f"/api/v1/jobs/{job_id}/logs?download=true", headers=headers)
        assert response.status_code == status, now
        if status == 429:
            assert response.json()["code"] == "too_many_downloads"
