"""An array as real processes: each element wrote its own number once, though workers and agents are killed meanwhile."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.protocol.arrays import ArrayRequest
from tests.system.stack import A100, Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e
WRITER = "import os, sys; os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND), os.environ['GPUSCHED_ARRAY_INDEX'].encode() + b'\\n')"


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


def start_agent(stack: Stack) -> None:
    """One whose jobs outlive it."""
    stack.agent("--pretend", f"2:{A100}:81920:8:8:65536", name="fleet", own_jobs=False)
    wait_for(lambda: stack.client().status().online_nodes == 2, 60, "the nodes")


def test_each_element_runs_once_when_worker_and_agent_are_killed(stack: Stack, tmp_path: Path) -> None:
    """A31, A50"""
    start_agent(stack)
    client = stack.client()
    written = tmp_path / "numbers"
    written.touch()
    array = client.submit(
        [sys.executable, "-c", WRITER, str(written)], gpus=1, array=ArrayRequest(count=150, max_parallel=12)
    )
    for part in ("worker", "agent", "worker"):
        before = written.stat().st_size
        wait_for(lambda: written.stat().st_size > before + 20, 60, "more elements to write")  # noqa: B023
        if part == "agent":
            os.kill(stack.agents[-1].pid, signal.SIGKILL)
            stack.agents.pop().wait()
            start_agent(stack)
        else:
            assert stack.kill("manage.py worker")
    done = client.wait(array.id, timeout=110)
    assert (done.state, done.array and done.array.by_state) == ("completed", {"completed": 150})
    assert sorted(map(int, written.read_text().split())) == list(range(150))
    assert len(array.elements(state="completed")) == 150
