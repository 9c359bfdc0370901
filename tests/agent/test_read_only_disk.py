"""A disk that the kernel has made read-only after an error: what runs on it is known, and can be stopped."""

import contextlib
import errno
import fcntl
import os
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent import processes
from gpusched.agent.config import Config
from gpusched.agent.gpus.nvml import Nvml
from gpusched.agent.host import doctor
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.protocol.agent_messages import RankSpec, Stop
from gpusched.protocol.findings import READ_ONLY_DISK
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.agent.mounts import mount
from tests.processes import is_alive
from tests.waiting import until_exists

EXT4_IOC_SHUTDOWN, WITHOUT_ITS_LOG = 0x8004587D, 2


def shut_down(disk: Path) -> None:
    """Make the kernel refuse each read and write of a disk of ext4."""
    handle = os.open(disk, os.O_RDONLY)
    fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", WITHOUT_ITS_LOG))
    os.close(handle)


def test_rank_on_a_read_only_disk_is_alive_and_can_be_stopped(agent: Agent, control: Control, tmp_path: Path) -> None:
    """A06: its order to stop cannot be written, and it ran for ever."""
    key = control.run("sleep", "600")
    agent.start()
    pid = control.start_of(key).pid
    agent.kill()
    journal = Journal(tmp_path / "other", rank_dir.boot_id())
    journal.ranks = tmp_path / "read_only"
    journal.ranks.mkdir()
    mount("--bind", agent.ranks, journal.ranks)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(journal.ranks)], check=True)
        assert journal.inspect(key)[2]
        with pytest.raises(OSError, match="Read-only"):
            journal.stop(key, "cancelled", 600)
        eventually(lambda: not is_alive(pid), 10, "the end of the process")
    finally:
        subprocess.run(["umount", "-l", str(journal.ranks)], check=True)


def test_doctor_reports_a_read_only_disk(tmp_path: Path) -> None:
    """An error of ext4 leaves its mount options and `access` as they are: the kernel refuses each write."""
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mount("-o", "loop", image, place)
    try:
        assert doctor._disk(place).check == "disk"
        for break_disk in (lambda: mount("-o", "remount,abort", place), lambda: shut_down(place)):
            break_disk()
            hints = doctor.hints(Config(), Nvml(), 0, {}, place)
            (finding,) = [hint for hint in hints if hint.check == READ_ONLY_DISK]
            assert finding.level == "fail"
            assert finding.next_step
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_failure_that_repeats_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server repeats an order with each heartbeat: one that fails filled the log."""
    journal = Journal(tmp_path, rank_dir.boot_id())
    journal.prepare("1.1.0", RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="a", argv=["true"]), "n")
    ranks = Ranks(journal, Launcher(tmp_path / "doorbell", False), "n")
    errors = iter(
        [OSError(30, "Read-only"), OSError(30, "Read-only"), OSError(28, "No space"), None, OSError(30, "Read-only")]
    )

    def fail(*_: object) -> None:
        if error := next(errors):
            raise error

    monkeypatch.setattr(journal, "stop", fail)
    for _ in range(5):
        ranks.apply([Stop(key="1.1.0", reason="cancelled")])
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition("(")[2] for message in messages] == [
        "30, 'Read-only')",
        "28, 'No space')",
        "30, 'Read-only')",
    ]


@pytest.fixture
def disk(agent: Agent, tmp_path: Path) -> Iterator[Path]:
    """A disk of the agent's own for its directory."""
    image = tmp_path / "image"
    agent.directory.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    mount("-o", "loop", image, agent.directory)
    try:
        yield agent.directory
    finally:
        agent.kill()
        with contextlib.suppress(OSError):  # a disk that cannot be read
            strays = [pid for scope in agent.scopes() for pid in processes.strays(scope)]
            processes.signal_all([*supervisors(agent.directory), *strays], signal.SIGKILL)
        subprocess.run(["umount", "-l", str(agent.directory)], check=True)


def test_end_on_a_read_only_disk_is_reported(agent: Agent, control: Control, disk: Path, tmp_path: Path) -> None:
    """A06: the job kept its GPUs, and was charged for them, until the node's reboot."""
    ending = control.run("sh", "-c", f"{until_exists(tmp_path / 'go')}; exit 3")
    stopped, lost = (control.run("sleep", "600", job=job) for job in (2, 3))
    agent.start()
    for key in (ending, stopped, lost):
        control.start_of(key)
    mount("-o", "remount,abort", disk)
    (tmp_path / "go").touch()
    assert control.end_of(ending).exit_code == 3
    supervisor = rank_dir.holder(agent.ranks / lost)
    assert supervisor
    os.kill(supervisor, signal.SIGKILL)
    unstarted = control.run("true", job=4)
    for key in (stopped, unstarted):
        control.stop(key)
    assert [control.end_of(key).reason for key in (stopped, unstarted)] == ["cancelled", "cancelled"]
    assert control.end_of(lost).reason == "supervisor_lost"


def test_end_on_a_disk_that_cannot_be_read_is_reported(
    agent: Agent, control: Control, disk: Path, tmp_path: Path
) -> None:
    """XFS, too, refuses each read and write after an error of its disk."""
    ending = control.run("sh", "-c", f"{until_exists(tmp_path / 'go')}; exit 3")
    agent.start()
    control.start_of(ending)
    supervisor = rank_dir.holder(agent.ranks / ending)
    assert supervisor
    shut_down(disk)
    try:
        (tmp_path / "go").touch()
        assert control.end_of(ending).exit_code == 3
    finally:
        os.kill(supervisor, signal.SIGKILL)


@pytest.mark.parametrize(("number", "calls"), [(errno.EIO, 1), (errno.EROFS, 1), (errno.ENOSPC, 0)])
def test_end_is_sent_while_a_broken_disk_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, calls: int
) -> None:
    errors = [OSError(number, "no write")]

    def write(*_: object) -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setattr(rank_dir, "write_surely", write)
    monkeypatch.setattr("time.sleep", lambda _: None)
    sent: list[bool] = []
    rank_dir.write_in_the_end(tmp_path, rank_dir.EXIT, {}, lambda: sent.append(True))
    assert len(sent) == calls
