"""A shared directory of logs and large tasks whose mount goes away under a running server."""

import asyncio

import pytest

from gpusched.lib.api.problems import Problem
from jobs.logs import store
from serving import payloads
from serving.batching import transfers
from serving.requests.claims import Claimed


@pytest.fixture
def shared(settings, tmp_path, monkeypatch):
    """The directory, with a log and a file of a task in it."""
    settings.FILES_DIR = tmp_path / "shared"
    settings.FILES_DIR.mkdir()
    settings.STORAGES = {**settings.STORAGES}  # makes the storages anew
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 0.2)
    store.append(1, 1, 0, 0, b"one\n")
    return settings.FILES_DIR


@pytest.fixture
def unmounted(shared):
    """The empty directory below a mount."""
    file = payloads.store(b"input")
    shared.rename(shared.with_name("elsewhere"))
    shared.mkdir()
    yield file
    assert not list(shared.iterdir()), "what is written there is gone once it is mounted again"
    shared.rmdir()
    shared.with_name("elsewhere").rename(shared)
    assert store.read(1, 1, 0, 0, 100).data == b"one\n"
    assert payloads.read(file) == b"input"
    assert store.append(1, 1, 0, 4, b"two\n") == 8


@pytest.mark.parametrize(
    "use",
    [
        lambda: store.append(1, 1, 0, 4, b"two\n"),
        lambda: store.append(2, 1, 0, 0, b"one\n"),
        lambda: store.read(1, 1, 0, 0, 100),
        lambda: store.size_of(1, 1, 0),
    ],
)
def test_logs_are_unavailable_and_not_empty(unmounted, use):
    with pytest.raises(Problem) as caught:
        use()
    assert caught.value.code == "storage_unavailable"


def test_no_log_counts_as_deleted(unmounted):
    with pytest.raises(OSError):
        store.drop(1, 1, 0)


def test_nothing_is_stored_below_the_mount(unmounted):
    with pytest.raises(OSError):
        payloads.store(b"result")


def test_input_is_read_once_it_is_mounted_again(shared, monkeypatch):
    """A file that is missing for good fails its task at once."""
    monkeypatch.setattr(transfers, "RETRY_SECONDS", 20)
    request = Claimed(1, 1, b"", "", 1.0, payloads.store(b"input"))
    away = shared.with_name("elsewhere")

    async def load():
        shared.rename(away)
        loading = asyncio.create_task(transfers.load([request]))
        done, _ = await asyncio.wait([loading], timeout=0.2)
        assert not done
        away.rename(shared)
        return await loading

    loaded, failed = asyncio.run(load())
    assert ([one.payload for one in loaded], failed) == ([b"input"], [])


def test_directory_of_a_new_server_is_made(settings, tmp_path):
    settings.FILES_DIR = tmp_path / "new"
    settings.STORAGES = {**settings.STORAGES}
    assert store.size_of(1, 1, 0) == 0
    assert (tmp_path / "new" / "logs").is_dir()
