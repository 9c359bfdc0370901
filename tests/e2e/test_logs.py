"""A log through kill -9 of every part, with the real server and its disk (A40)."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from gpusched.client.errors import GpuschedError
from tests.system.stack import A100, Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e
LINES = 6000
WRITER = f"""
import os, time
for n in range({LINES}):
    os.write(1, b"%d " % n + bytes([n % 256]) * (n % 400) + b"\\n")
    if n % 100 == 0: time.sleep(0.15)
"""


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


def start_agent(stack: Stack) -> None:
    """One whose jobs outlive it."""
    stack.agent("--pretend", f"1:{A100}:81920:1:8:65536", name="fleet", own_jobs=False)
    wait_for(lambda: stack.client().status().online_nodes == 1, 60, "the node")


def test_log_is_complete_when_agent_and_server_are_killed(stack: Stack) -> None:
    """A40: read from its start and from its end, while it grows and when it is over."""
    whole = b"".join(b"%d " % n + bytes([n % 256]) * (n % 400) + b"\n" for n in range(LINES))
    start_agent(stack)
    client = stack.client()
    job = client.submit([sys.executable, "-c", WRITER], gpus=1)
    wait_for(lambda: client.logs(job.id).size > 1000, 30, "the first lines")

    def size() -> int:
        try:
            return client.logs(job.id).size
        except GpuschedError:  # the web process is not back yet
            return 0

    for part in ("web", "agent", "everything", "agent"):
        before = size()
        if part == "agent":
            os.kill(stack.agents[-1].pid, signal.SIGKILL)
            stack.agents.pop().wait()
            start_agent(stack)
        elif part == "web":
            assert stack.kill("daphne")
        else:
            assert stack.kill("") and stack.up is not None
            stack.up.wait()
            stack.start()
        wait_for(lambda: size() > before or size() == len(whole), 30, "more lines")  # noqa: B023
    assert client.wait(job.id, timeout=60).state == "completed"
    wait_for(lambda: client.logs(job.id, offset=-1).is_complete, 30, "the last byte")
    found = b""
    while len(found) < client.logs(job.id, offset=-1).size:
        found += client.logs(job.id, offset=len(found)).data
    assert found == whole
    assert client.logs(job.id, offset=-5000).data == whole[-5000:]
