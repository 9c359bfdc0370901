"""Logs on their way from a job's file to the server (A40): complete through any kill, cut beyond their limit."""

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent.rank_files import log_truncation, rank_dir
from jobs.logs import store
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.waiting import until_random_moment

MIB = 1 << 20
# Writes numbered lines of bytes that are not text, with pauses, so that kills hit each stage.
WRITER = """
import os, sys, time
lines, pause = int(sys.argv[1]), float(sys.argv[2])
for number in range(lines):
    os.write(1, b"%d \\x00\\xff\\r " % number + bytes([number % 256]) * (number % 997) + b"\\n")
    if number % 50 == 0:
        time.sleep(pause)
"""


def written(lines: int) -> bytes:
    return b"".join(b"%d \x00\xff\r " % n + bytes([n % 256]) * (n % 997) + b"\n" for n in range(lines))


class Keeping(Control):
    """A control plane that keeps logs as the real one does, may lose a request or its answer, and can be restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lossy = False

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        is_log = self.is_lossy and path.startswith("/agent/logs")
        if is_log and self.chance.random() < 0.2:
            return 503, b""
        status, answer = super().answer(path, body)
        if is_log and self.chance.random() < 0.2:
            return 502, b""  # stored, but not acknowledged
        return status, answer

    def _append(self, query: dict[str, list[str]], body: bytes) -> tuple[int, bytes]:
        status, answer = super()._append(query, b"")  # what it refuses
        job, attempt, rank = map(int, query["key"][0].split("."))
        size = store.append(job, attempt, rank, int(query["offset"][0]), body)
        return (status, answer) if status != 200 else (200, b'{"size":%d,"most_bytes":%d}' % (size, store.max_bytes()))


@pytest.fixture
def control(tmp_path: Path, settings: Any) -> Iterator[Keeping]:
    settings.DATA_DIR = tmp_path / "server"
    settings.STORAGES = {**settings.STORAGES, "logs": {"BACKEND": "jobs.logs.files.LogFiles"}}
    with Keeping() as running:
        yield running


def stored(key: str) -> bytes:
    job, attempt, rank = map(int, key.split("."))
    content = b""
    while piece := store.read(job, attempt, rank, len(content), store.MAX_READ).data:
        content += piece
    return content


def test_log_is_complete_whatever_is_killed_while_it_is_written(agent: Agent, control: Keeping, tmp_path: Path) -> None:
    """A40: agent and server are killed and restarted in turn, pieces and answers are lost; two ranks at once."""
    import sys

    control.is_lossy = True
    keys = [control.run(sys.executable, "-c", WRITER, "3000", "0.03", job=number) for number in (1, 2)]
    agent.start()
    for key in keys:
        control.start_of(key)
    for _ in range(3):
        until_random_moment(control.chance, 0.1, 0.4)
        control.restart()
        until_random_moment(control.chance, 0.1, 0.4)
        agent.kill()
        agent.start()
    for key in keys:
        assert control.end_of(key).log_bytes == len(written(3000))
    control.is_lossy = False
    eventually(lambda: not list(agent.ranks.iterdir()), 20, "all ranks to be forgotten")
    assert [stored(key) == written(3000) for key in keys] == [True, True]


def test_log_of_a_short_job_arrives_without_its_notification(agent: Agent, control: Keeping) -> None:
    """The poll may see the end of a rank before the notification does, or the notification may be lost. The job is the
    node's only one, so that no other job's notification makes up for it."""
    agent.start()
    eventually(lambda: control.syncs, 20, "the agent to report")
    (agent.directory / "doorbell").unlink()
    key = control.run("echo", "the only line")
    control.end_of(key)
    eventually(lambda: stored(key) == b"the only line\n", 10, "the log")


def test_log_beyond_its_limit_loses_its_middle_and_counts_it_through_kills(
    agent: Agent, control: Keeping, tmp_path: Path
) -> None:
    """A40: the job is never in want of room: it writes all that it has to."""
    import sys

    script = "import os, time\nfor n in range(80): os.write(1, bytes([65 + n % 26]) * 65536); time.sleep(0.02)"
    key = control.run(sys.executable, "-c", script)
    agent.start("--log-max-mb", "2")
    for sent in (log_truncation.MIN_BYTES, log_truncation.MIN_BYTES + 500_000):  # the limit is fixed by then
        eventually(lambda: len(stored(key)) > sent, 20, "a part of the log")  # noqa: B023
        agent.kill()
        agent.start("--log-max-mb", "3")  # for ranks that come; what was cut so stays cut so
    end = control.end_of(key)
    eventually(lambda: not list(agent.ranks.iterdir()), 20, "the rank to be forgotten")
    full_log = b"".join(bytes([65 + n % 26]) * 65536 for n in range(80))
    content = stored(key)
    assert end.log_bytes == len(content)
    assert content.startswith(full_log[: 2 * MIB]) and content.endswith(full_log[-65536:])
    [cut] = re.findall(rb"^\[gpusched: (\d+) bytes were cut here\]$", content, re.M)
    assert int(cut) == len(full_log) - 2 * MIB - 65536
    assert b"[gpusched: this log has passed 2 MiB; of what follows only the end is kept]\n" in content


def test_refused_log_delays_no_other_and_a_proxys_404_drops_none(
    agent: Agent, control: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, refused, refusals = control._append, {"status": 404}, list[int]()

    def _append(query: dict[str, list[str]], body: bytes) -> tuple[int, bytes]:
        if query["key"] == ["1.1.0"] and refused:
            refusals.append(refused["status"])
            return refused["status"], b"<html>404 page not found</html>"
        return append(query, body)

    monkeypatch.setattr(control, "_append", _append)
    first = control.run("sh", "-c", "echo first", job=1)
    other = control.run("sh", "-c", "echo other; sleep 60", job=2)
    large = control.run("sh", "-c", "head -c 3000000 /dev/zero; sleep 60", job=3)
    agent.start()
    control.end_of(first)
    control.start_of(large)
    eventually(lambda: stored(other) == b"other\n" and len(stored(large)) == 3_000_000, 1.9, "the logs of others")
    refused["status"] = 500
    eventually(lambda: refusals.count(500) > 1, 10, "refusals with 500")
    refused.clear()
    eventually(lambda: stored(first) == b"first\n", 10, "the log that was refused")


def test_server_limits_the_size_of_logs(agent: Agent, control: Keeping, settings: Any) -> None:
    settings.ENV = type(settings.ENV)(log_max_mb=1)
    key = control.run("sh", "-c", "sleep 0.8; head -c 3000000 /dev/zero", job=2)
    first = control.run("echo", "first", job=1)
    agent.start()
    control.end_of(first)
    eventually(lambda: stored(first) == b"first\n", 10, "the first log")
    assert control.end_of(key).log_bytes < MIB + 66_000
    eventually(lambda: len(stored(key)) == control.ended[key][0].log_bytes, 10, "the log")


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, MIB + 65536, MIB + 65537, 3 * MIB])
def test_sent_text_only_grows_and_is_readable_from_any_byte(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log"
    data = random.Random(7).randbytes(size)
    path.write_bytes(data)
    sent = b""
    for now, is_final in ((size // 2, False), (size, False), (size, True)):
        parts = log_truncation.parts(now, MIB, is_final=is_final)
        step = 100_003
        while piece := log_truncation.read(str(path), parts, len(sent), step):
            sent += piece
        assert len(sent) == log_truncation.total(parts)
    if size <= MIB + log_truncation.TAIL_BYTES:
        assert sent == data
    else:
        head, _, remainder = sent.partition(b"\n[gpusched: this log has passed 1 MiB")
        assert (head, remainder[-log_truncation.TAIL_BYTES :]) == (data[:MIB], data[-log_truncation.TAIL_BYTES :])
        assert f"\n[gpusched: {size - MIB - log_truncation.TAIL_BYTES} bytes were cut here]\n".encode() in sent


def test_disk_of_the_cut_part_is_freed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = os.urandom(MIB) * 24
    path.write_bytes(data)
    freed = log_truncation.free_disk(str(path), len(data), MIB, 0)
    assert log_truncation.free_disk(str(path), len(data), MIB, freed) == freed
    if path.stat().st_blocks * 512 == len(data):
        pytest.skip("this file system cannot give room back")
    assert path.stat().st_blocks * 512 < 2 * MIB
    stored = log_truncation.read(str(path), log_truncation.parts(len(data), MIB, is_final=True), 0, len(data))
    assert stored.startswith(data[:MIB]) and stored.endswith(data[-log_truncation.TAIL_BYTES :])


def test_log_limit_is_fixed_once_per_rank_and_not_for_short_logs(tmp_path: Path) -> None:
    from gpusched.agent.ranks.journal import Journal
    from gpusched.agent.ranks.launcher import Launcher
    from gpusched.agent.ranks.rank_state import RankState
    from gpusched.agent.ranks.ranks import Ranks

    ranks = Ranks(Journal(tmp_path, "boot"), Launcher(tmp_path / "doorbell", False), "node", 8 * MIB)
    (tmp_path / "ranks" / "1.1.0").mkdir()
    assert ranks.log_limit(RankState("1.1.0"), MIB) is None
    assert rank_dir.read(tmp_path / "ranks" / "1.1.0", rank_dir.LOG_LIMIT) is None
    ranks.limit_logs(4 * MIB)
    ranks.limit_logs(6 * MIB)
    assert ranks.log_limit(RankState("1.1.0"), MIB + 1) == 4 * MIB
    ranks.limit_logs(2 * MIB)
    assert ranks.log_limit(RankState("1.1.0"), 9 * MIB) == 4 * MIB
