"""A disk that does not answer: a rank that it keeps from starting can be stopped."""

import asyncio
import os
import time
from pathlib import Path
from threading import Event

import httpx
import pytest

from gpusched.agent import processes
from gpusched.agent.host.machine import PretendMachine, PretendSpec
from gpusched.agent.identity import Identity
from gpusched.agent.log_shipping import run_shipping
from gpusched.agent.node import Node
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.agent.ranks.ranks import Ranks
from gpusched.protocol.agent_messages import Ended, RankSpec, Run, Started, Stop
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


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node with one rank, which runs."""
    monkeypatch.setattr("gpusched.agent.node.FIRST_FACTS_SECONDS", 0)
    machine = PretendMachine("n", PretendSpec(1, "A100", 1, 1, 1, 1))
    node = Node(tmp_path, Identity(name="n", node_key="k"), machine, Launcher(tmp_path / "doorbell", False), "", 1)
    node.ranks.table.add(KEY).started = Started(key=KEY, at=rank_dir.now(), pid=1)
    return node


async def test_message_does_not_wait_for_checkpoints_that_cannot_be_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that another thread changes on a disk that hangs is locked: its node was lost, with its jobs."""
    monkeypatch.setattr("gpusched.agent.node.SAVED_SECONDS", 0.05)
    monkeypatch.setattr(rank_dir, "saved_at", lambda _: "2030-01-01T00:00:00+00:00")
    assert (await node.message()).saved == {KEY: "2030-01-01T00:00:00+00:00"}
    answers = Event()
    monkeypatch.setattr(rank_dir, "saved_at", lambda _: str(answers.wait(30)))
    try:
        assert (await node.message()).saved == {KEY: "2030-01-01T00:00:00+00:00"}
    finally:
        answers.set()
    assert (await node.message()).saved == {KEY: "True"}


async def test_logs_that_cannot_be_read_do_not_hold_up_the_agent(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked = Event(), Event()

    def wait(*_: object) -> str:
        asked.set()
        return str(answers.wait(10))

    monkeypatch.setattr(Ranks, "log_path", wait)
    node.log_may_grow.set()
    async with httpx.AsyncClient() as http:
        began, shipping = time.monotonic(), asyncio.create_task(run_shipping(node, http))
        try:
            assert await asyncio.to_thread(asked.wait, 5)
            assert time.monotonic() - began < 5
        finally:
            answers.set()
            shipping.cancel()
