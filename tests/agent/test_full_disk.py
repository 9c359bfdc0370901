"""A job whose output fills the disk of the agent's directory: it ends, it can be stopped, and the disk is free again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.agent.rank_files import rank_dir
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.agent.mounts import mount

# It writes until the disk is full.
FILL = "head -c 20000000 /dev/zero 2>/dev/null"


@pytest.fixture
def disk(agent: Agent) -> Iterator[Path]:
    """The agent's directory on a file system of its own."""
    agent.directory.mkdir()
    mount("-t", "tmpfs", "-o", "size=4m", "none", agent.directory)
    yield agent.directory
    if agent.process is not None and agent.process.poll() is None:
        agent.kill()
    subprocess.run(["umount", "-l", str(agent.directory)], check=True)


def free(disk: Path) -> float:
    status = os.statvfs(disk)
    return status.f_bfree / status.f_blocks


def test_end_is_reported_and_the_log_is_sent(agent: Agent, control: Control, disk: Path) -> None:
    key = control.run("sh", "-c", f"{FILL}; exit 3")
    agent.start()
    ended = control.end_of(key)
    assert ended.exit_code == 3 and ended.log_bytes > 3 << 20
    eventually(lambda: free(disk) > 0.9, 20, "the log to be removed")
    assert control.logs[key] == bytes(ended.log_bytes)
    assert control.end_of(control.run("true", job=2)).exit_code == 0


def test_job_can_be_stopped(agent: Agent, control: Control, disk: Path) -> None:
    key = control.run("sh", "-c", f"{FILL}; exec sleep 600")
    agent.start()
    eventually(lambda: free(disk) == 0, 20, "a full disk")
    control.stop(key)
    assert control.end_of(key).reason == "cancelled"
    eventually(lambda: free(disk) > 0.9, 20, "the log to be removed")


def test_end_of_a_killed_supervisor_is_reported(agent: Agent, control: Control, disk: Path) -> None:
    key = control.run("sh", "-c", f"{FILL}; exec sleep 600")
    agent.start()
    eventually(lambda: free(disk) == 0, 20, "a full disk")
    supervisor = rank_dir.holder(agent.ranks / key)
    assert supervisor is not None
    os.kill(supervisor, signal.SIGKILL)
    assert control.end_of(key).reason == "supervisor_lost"
