"""Cancelling, extending and losing nodes, with real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from nodes.agents.websocket import MAX_BYTES, TOO_LARGE
from tests.agent.test_rank_life import DAEMONISE
from tests.client.commandline import as_at_a_terminal
from tests.processes import is_alive
from tests.system.joining import join
from tests.system.stack import A100, ROOT, Stack
from tests.waiting import assert_stays, wait_for

pytestmark = pytest.mark.e2e
SPEC = f"1:{A100}:81920:8:64:524288"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two nodes, each with an agent of its own, and little patience with silence."""
    with Stack(node_lost_seconds=3) as running:
        for name in ("left", "right"):
            running.agent("--pretend", SPEC, name=name)
        wait_for(lambda: running.client().status().online_nodes == 2, 60, "both nodes")
        yield running


def test_cancel_ends_the_process(stack: Stack, tmp_path: Path) -> None:
    """A06: processes dead (the daemonised one, too), GPUs and quota back; a second cancel is harmless."""
    client = stack.client()
    (tmp_path / "daemonise.py").write_text(DAEMONISE)
    script = f"{sys.executable} {tmp_path}/daemonise.py {tmp_path}/child; echo $$ > {tmp_path}/own; sleep 600"
    job = client.submit(["sh", "-c", script], gpus=8)
    wait_for(lambda: (tmp_path / "own").exists() and (tmp_path / "own").read_text(), 20, "the job to run")
    pids = [int((tmp_path / name).read_text()) for name in ("own", "child")]
    assert all(is_alive(pid) for pid in pids)
    assert client.tenant("default").in_use.gpus == 8
    client.cancel(job.id)
    client.cancel(job.id)
    assert client.wait(job.id, timeout=30).state == "cancelled"
    assert not any(is_alive(pid) for pid in pids)
    client.cancel(job.id)
    assert client.get(job.id).state == "cancelled"
    assert client.status().available_gpus == 16
    assert client.tenant("default").in_use.gpus == 0


def test_pending_job_is_cancelled_at_once(stack: Stack) -> None:
    """A06."""
    client = stack.client()
    holders = [client.submit(["sleep", "600"], gpus=8) for _ in range(2)]
    waits = client.submit(["sleep", "600"], gpus=8)
    client.cancel(waits.id)
    assert client.get(waits.id).state == "cancelled"
    for job in holders:
        client.cancel(job.id)
        assert client.wait(job.id, timeout=30).state == "cancelled"


def test_node_falls_silent_and_returns(stack: Stack, tmp_path: Path) -> None:
    """A37: lost, its job requeued and run elsewhere; back, what it still ran is stopped and nothing else."""
    client = stack.client()
    job = client.submit(["sh", "-c", f"echo $$ > {tmp_path}/$GPUSCHED_ATTEMPT; exec sleep 600"], gpus=8)
    wait_for(lambda: client.get(job.id).state == "running", 20, "the job to run")
    [node] = client.get(job.id).nodes
    agent = stack.agents[0 if node.startswith("left") else 1]
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: client.get(job.id).attempt == 2 and client.get(job.id).state == "running", 40, "attempt 2")
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    assert client.get(job.id).nodes != [node]
    first, second = (int((tmp_path / attempt).read_text()) for attempt in ("1", "2"))
    wait_for(lambda: not is_alive(first), 30, "the stale attempt to be stopped")
    wait_for(lambda: client.status().online_nodes == 2, 30, "the node to be back")
    assert_stays(lambda: is_alive(second), 1)
    assert (client.get(job.id).state, client.get(job.id).attempt) == ("running", 2)
    client.cancel(job.id)
    assert client.wait(job.id, timeout=30).state == "cancelled"


PROGRAM = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(3)))
signal.signal(signal.SIGUSR1, lambda *_: print("heard", flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_run_passes_signals_and_the_exit_code(stack: Stack) -> None:
    """USR1 reaches the real program; Ctrl-C is its SIGTERM with its grace, and run ends with the code that it ends with."""
    environment = {
        **os.environ,
        "GPUSCHED_URL": stack.url,
        "GPUSCHED_TOKEN": stack.token(),
        "GPUSCHED_TENANT": "default",
    }
    command = [
        sys.executable,
        "-m",
        "gpusched.cli.main",
        "run",
        "--name",
        "foreground",
        "--",
        sys.executable,
        "-c",
        PROGRAM,
    ]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, preexec_fn=as_at_a_terminal
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_for(lambda: stack.client().list(name="foreground", state="running"), 30, "the server to know that it runs")
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"heard\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == b"saved\n"
    assert process.returncode == 3


def test_extended_job_outlives_its_old_limit_and_stops_at_the_new_one(stack: Stack, tmp_path: Path) -> None:
    """A36: the running process reads the new deadline beside the old one; its end is reported with that deadline."""
    client = stack.client()
    script = f"""#!/bin/sh
trap 'cp $GPUSCHED_DEADLINE_FILE {tmp_path}/new; exit 0' TERM
echo $GPUSCHED_DEADLINE > {tmp_path}/old
while :; do sleep 0.1; done
"""
    job = client.submit(script=script, gpus=1, max_runtime_minutes=0.1)
    wait_for(lambda: (tmp_path / "old").exists(), 30, "the job to run")
    extended = client.extend(job.id, max_runtime_minutes=0.15)
    assert (extended.status, extended.ends_at) == ("changed", extended.job.deadline_at)
    done = client.wait(job.id, timeout=60)
    assert done.started_at and done.ended_at and done.reason
    assert 9 <= (done.ended_at - done.started_at).total_seconds() < 30
    assert (done.state, done.reason.code, done.deadline_at) == ("failed", "time_limit", None)
    old, new = (datetime.fromisoformat(text) for text in _deadlines(tmp_path))
    assert (new - old).total_seconds() == pytest.approx(3, abs=0.01)


def _deadlines(directory: Path) -> tuple[str, str]:
    return (directory / "old").read_text().strip(), json.loads((directory / "new").read_text())["deadline_at"]


@pytest.mark.parametrize(("size", "code"), [(2 << 20, None), (MAX_BYTES + 1, TOO_LARGE)])
def test_agent_socket_refuses_too_large_messages_with_the_reason(stack: Stack, size: int, code: int | None) -> None:
    """The server below would close it at 1 MiB by itself, without a word, and the agent would say it all again."""
    credential = join(stack.url, stack.client().join_token().token, "talkative")
    address = stack.url.replace("http", "ws") + "/ws/agent/"
    with connect(address, additional_headers={"Authorization": f"Bearer {credential}"}, max_size=None) as socket:
        socket.send("x" * size)
        if code is None:
            assert "not understood" in str(socket.recv(60))
        else:
            with pytest.raises(ConnectionClosed):
                socket.recv(60)
            assert socket.close_code == code
