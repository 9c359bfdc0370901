"""The secrets of a job on its node: files that only the job can read, removed with it (A56)."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpusched.agent import processes
from gpusched.agent.containers import runtimes
from gpusched.agent.rank_files import rank_dir, raw_file, secret_files
from gpusched.agent.ranks.journal import Journal
from gpusched.protocol.agent_messages import RankSpec
from tests.agent.conftest import Agent, supervisors
from tests.agent.control import Control, eventually
from tests.agent.mounts import mount
from tests.agent.test_isolation import REFUSING, USER, directory, log_of, needs_root

__all__ = ["directory"]
VALUE = "hunter2"
WAIT = 'cat "$GPUSCHED_SECRETS_DIR/token" > /dev/null && stat -c %a:%U "$GPUSCHED_SECRETS_DIR/token"; sleep 60'


def secrets_of(agent: Agent, key: str) -> Path:
    spec = rank_dir.read(agent.ranks / key, rank_dir.SPEC)
    assert spec is not None
    return Path(spec[rank_dir.SECRETS_KEY])


@pytest.mark.parametrize("user", ["", pytest.param(USER, marks=needs_root)])
def test_job_reads_its_secrets_and_the_value_is_nowhere_else(
    directory: Path, agent: Agent, control: Control, user: str
) -> None:
    """A56: not in arguments, environments, the files of the rank or the log; files of mode 0400, in memory."""
    agent.directory = directory / "agent"
    key = control.run("sh", "-c", WAIT, user=user, secrets={"token": VALUE})
    agent.start(environment=REFUSING if user else {})
    log = agent.ranks / key / "output.log"
    eventually(lambda: log.exists() and log.read_text(), 10, "the job to have read it")
    owner = user or processes.inspect(os.getpid()).user  # type: ignore[union-attr]
    assert log.read_text() == f"400:{owner}\n"
    locations = secrets_of(agent, key)
    assert locations.stat().st_mode & 0o777 == 0o700
    if os.path.isdir(secret_files.MEMORY):
        assert str(locations).startswith(f"{secret_files.MEMORY}/")
    for file in (path for path in agent.directory.rglob("*") if path.is_file() and path.parent != locations):
        assert VALUE.encode() not in raw_file.read_if_possible(str(file)), file  # it may be replaced meanwhile
    assert agent.process is not None
    for pid in {control.start_of(key).pid, *supervisors(agent.directory), *processes.descendants(agent.process.pid)}:
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # a process of the agent's that has ended meanwhile
                assert VALUE.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    control.stop(key)
    control.end_of(key)
    assert not locations.exists()


@needs_root
def test_another_user_cannot_read_secrets(directory: Path, agent: Agent, control: Control) -> None:
    """A56. Not even whoever knows the path."""
    agent.directory = directory / "agent"
    key = control.run("sleep", "60", user=USER, secrets={"token": VALUE}, job=1)
    agent.start(environment={"GPUSCHED_AGENT_ALLOW_ROOT": "true"})
    control.start_of(key)
    file = secrets_of(agent, key) / "token"
    spy = control.run("sh", "-c", f"cat {file}; ls {file.parent}; ls {file.parent.parent}", user="daemon", job=2)
    assert VALUE not in (output := log_of(control, spy)) and output.count("Permission denied") == 3


def test_secrets_are_removed_when_the_supervisor_is_killed_or_nothing_started(agent: Agent, control: Control) -> None:
    lost = control.run("sleep", "60", secrets={"token": VALUE}, job=1)
    failing = control.run("/no/such/program", secrets={"token": VALUE}, job=2)
    control.is_acknowledging = False
    agent.start()
    control.start_of(lost)
    control.end_of(failing)
    locations = [secrets_of(agent, key) for key in (lost, failing)]
    for pid in supervisors(agent.directory):
        os.kill(pid, signal.SIGKILL)
    assert control.end_of(lost).reason == "supervisor_lost"
    assert not any(path.exists() for path in locations)


def test_secrets_directory_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    (memory / f"gpusched-{os.geteuid()}").symlink_to(tmp_path)
    monkeypatch.setattr(secret_files, "MEMORY", str(memory))
    rank = tmp_path / "rank"
    rank.mkdir()
    locations = secret_files.write(rank, {"token": VALUE}, None)
    assert locations.startswith(f"{rank}/")
    assert secret_files.write(rank, {"token": "newer"}, None) == locations, (
        "a preparation that was cut short is done again"
    )
    assert Path(locations, "token").read_text() == "newer"


@pytest.mark.parametrize("inodes", [50, 3])
def test_job_starts_on_a_node_whose_memory_other_jobs_have_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inodes: int
) -> None:
    """A job of another tenant, by writing to /dev/shm, must not make faults of this node of all jobs with secrets."""
    memory = Path(tempfile.mkdtemp(prefix="shm-", dir="/tmp"))
    mount("-t", "tmpfs", "-o", f"size=64k,nr_inodes={inodes}", "none", memory)
    try:
        (memory / f"gpusched-{os.geteuid()}").mkdir(0o700)
        with pytest.raises(OSError, match="No space"):
            (memory / "x").write_bytes(bytes(1 << 20))
        with contextlib.suppress(OSError):
            (memory / "y").touch()
        monkeypatch.setattr(secret_files, "MEMORY", str(memory))
        monkeypatch.setenv("GPUSCHED_AGENT_ALLOW_ROOT", "true")
        rank_spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="x", argv=["true"], secrets={"t": VALUE})
        journal = Journal(tmp_path / ("long" * 30) / "node", rank_dir.boot_id())
        spec = json.loads((journal.prepare("1.1.0", rank_spec, "node") / rank_dir.SPEC).read_text())
        assert Path(spec[rank_dir.SECRETS_KEY], "t").read_text() == VALUE
        assert Path(spec["environment"]["TMPDIR"]).is_dir()
        journal.drop("1.1.0")
        assert not os.path.exists(spec[rank_dir.SECRETS_KEY])
    finally:
        subprocess.run(["umount", str(memory)], check=True)
        memory.rmdir()


def test_interrupted_preparation_leaves_no_secret_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when spec.json is to be written: nothing on it says where the secrets are, nor that there are any."""
    monkeypatch.setattr(runtimes, "versions", lambda _: {"podman": "4.0"})
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("GPUSCHED_AGENT_ALLOW_ROOT", "true")
    rank_spec = RankSpec(
        job_id=1, attempt=1, rank=0, ranks=1, name="x", argv=["true"], image="busybox", secrets={"t": VALUE}
    )
    journal = Journal(tmp_path / "node", rank_dir.boot_id())
    write = secret_files.write
    places: list[Path] = []

    def noting(directory: Path, secrets: Mapping[str, str], account: Mapping[str, Any] | None) -> str:
        places.append(Path(write(directory, secrets, account)))
        return str(places[-1])

    monkeypatch.setattr(secret_files, "write", noting)
    with monkeypatch.context() as full:
        full.setattr(rank_dir, "write", refuse)
        for key in ("1.1.0", "2.1.0", "3.1.0"):
            with pytest.raises(OSError, match="No space"):
                journal.prepare(key, rank_spec, "node")
    assert [(place / "t").read_text() for place in places] == [VALUE] * 3
    journal.stop("1.1.0", "cancelled", 1)
    journal.drop("1.1.0")
    assert not places[0].exists()
    shutil.rmtree(journal.ranks / "2.1.0")
    Journal(tmp_path / "node", rank_dir.boot_id())
    assert [place.exists() for place in places] == [False, False, True], "swept at the start, but for what is there"
    assert (journal.prepare("3.1.0", rank_spec, "node") / rank_dir.SPEC).exists()
    journal.drop("3.1.0")
    assert not places[-1].exists()


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_failed_start_with_secrets_reports_its_reason(agent: Agent, control: Control) -> None:
    key = control.run("true", unfit="its secrets were sealed with another SECRET_KEY; submit it again")
    agent.start()
    end = control.end_of(key)
    assert (end.reason, end.detail) == (
        "launch_failed",
        "its secrets were sealed with another SECRET_KEY; submit it again",
    )
