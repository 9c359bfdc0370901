"""A disk that the kernel has made read-only after an error: what runs on it is known, and can be stopped."""

import subprocess
from pathlib import Path

import pytest

from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.agent.mounts import mount
from tests.processes import is_alive


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
