"""A disk that does not answer: a rank that it keeps from starting can be stopped."""

import os
from pathlib import Path

import pytest

from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.protocol.agent_messages import Ended, RankSpec, Run, Stop
from tests.agent.conftest import Agent
from tests.agent.control import Control, eventually
from tests.processes import is_alive

KEY = "1.1.0"


def test_stopped_rank_ends_though_its_supervisor_waits_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A working directory on a mount that hangs: the job kept its GPUs, and could run once the mount answered."""
    monkeypatch.setenv("GPUSCHED_AGENT_ALLOW_ROOT", "true")
    monkeypatch.setattr("gpusched.agent.ranks.ranks.STOP_SECONDS", 0)
    journal, launcher = Journal(tmp_path, rank_dir.boot_id()), Launcher(tmp_path / "doorbell", False)
    directory = journal.ranks / KEY
    directory.mkdir()
    os.mkfifo(directory / rank_dir.LOG)  # to open it waits in the kernel
    ranks = Ranks(journal, launcher, "node")
    try:
        spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="a", argv=["touch", f"{tmp_path}/ran"])
        ranks.apply([Run(key=KEY, spec=spec)])
        eventually(lambda: rank_dir.holder(directory), 10, "the supervisor")
        supervisor = rank_dir.holder(directory)
        assert supervisor
        eventually(lambda: processes.children(supervisor), 10, "its child")
        (child,) = processes.children(supervisor)
        ranks.apply([Stop(key=KEY, reason="cancelled", grace_seconds=0)])
        assert not ranks.reports()
        ranks.remind()
        assert ranks.inspect_all()
        assert [(report.key, report.reason) for report in ranks.reports() if isinstance(report, Ended)] == [
            (KEY, "cancelled")
        ]
        eventually(lambda: not is_alive(child), 10, "the end of the child")
    finally:
        launcher.close()
    assert not (tmp_path / "ran").exists()


def test_node_reports_while_its_disk_does_not_answer(agent: Agent, control: Control) -> None:
    """It was lost after 15 s without a WebSocket: its jobs, which were well, ran a second time elsewhere."""
    process = agent.start()
    eventually(lambda: control.syncs, 20, "the first message")
    directory = agent.ranks / KEY
    directory.mkdir()
    waits = directory / f".{rank_dir.SPEC}.{process.pid}"
    os.mkfifo(waits)  # to open it waits in the kernel
    control.run("true")
    seen = len(control.syncs)
    eventually(lambda: len(control.syncs) > seen + 20, 10, "more messages")
    waits.rename(directory / "later")
    os.close(os.open(directory / "later", os.O_RDONLY | os.O_NONBLOCK))
    assert control.end_of(KEY).exit_code == 0
