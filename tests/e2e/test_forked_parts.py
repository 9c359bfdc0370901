"""The parts of a server are forks of `up`: each is started again on its own, with connections of its own."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from gpusched.agent.processes import signal_all, start_of
from tests.processes import is_alive, open_files
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
REPLICA = "from gpusched.serve import serve\nserve(lambda requests: [2 * n for n in requests])\n"
_QUEUE_AGAIN = """
    UPDATE serving_inferencerequest SET state = 'queued', dispatcher = NULL, replica_job_id = NULL, started_at = NULL,
           ended_at = NULL, result = NULL WHERE id = %s
"""
_STATE = "SELECT state FROM serving_inferencerequest WHERE id = %s"
PARTS = ("daphne", "worker cycles", "worker housekeeping")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(heartbeat_seconds=0.5) as running:
        running.fleet(1)
        yield running


def main_process(stack: Stack, part: str) -> int:
    """Return the process of a part itself, without its children; 0 while there is none."""
    assert stack.up is not None
    mine = [pid for pid in stack.pids(part) if f"\nPPid:\t{stack.up.pid}\n" in Path(f"/proc/{pid}/status").read_text()]
    return mine[0] if mine else 0


def test_supervisor_that_forks_has_one_thread_and_no_connection(stack: Stack) -> None:
    """A fork would inherit locks that other threads hold, and share the connection."""
    assert stack.up is not None
    wait_for(lambda: all(main_process(stack, part) for part in PARTS), 60, "the parts")
    assert os.listdir(f"/proc/{stack.up.pid}/task") == [str(stack.up.pid)]
    targets = open_files(stack.up.pid).values()
    assert any(target.endswith("up.lock") for target in targets)
    assert not [target for target in targets if target.startswith(("socket:", "anon_inode:[eventpoll"))]


def test_parts_hold_no_lock_of_their_supervisor(stack: Stack) -> None:
    """It would keep `up` from starting again after a kill -9."""
    for part in PARTS:
        for pid in stack.pids(part):
            assert not [target for target in open_files(pid).values() if target.endswith("up.lock")]


@pytest.mark.parametrize("part", PARTS)
def test_killed_part_is_forked_again_and_works(stack: Stack, part: str) -> None:
    victim = main_process(stack, part)
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: main_process(stack, part) not in (0, victim), 60, "its return")
    wait_for(stack.is_ready, 60, "the server to be ready")
    client = stack.client()
    assert client.wait(client.submit(["true"], gpus=1).id, timeout=60).state == "completed"


@pytest.mark.parametrize("part", PARTS[1:])
def test_killed_process_of_a_worker_ends_the_others_and_the_part_works(stack: Stack, part: str) -> None:
    """A process that is killed while it waits for a task keeps the lock of the queue: any process that django-q2
    starts in its place waits for ever. The kernel does this when memory runs out."""

    def are_settled() -> bool:
        # By the kernel's clock: the time of day of the boot is known to a second only.
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        ages = [now - (start_of(pid) or 0) / os.sysconf("SC_CLK_TCK") for pid in stack.pids(part)]
        return len(ages) == 5 and min(ages) > 1

    for place in (2, 3, 4):  # after the main process and the sentinel: monitor, pusher, worker
        wait_for(are_settled, 60, "the processes of the part")
        old = stack.pids(part)
        os.kill(old[place], signal.SIGKILL)
        wait_for(lambda: not set(old) & set(stack.pids(part)), 20, "the others to end")  # noqa: B023
    wait_for(are_settled, 60, "the processes of the part")
    client = stack.client()
    assert client.wait(client.submit(["true"], gpus=1).id, timeout=60).state == "completed"


def test_restarted_web_process_serves_before_its_first_request(stack: Stack) -> None:
    """Agents connect to it, tasks wait, and no page is open."""
    client = stack.client()
    template = {"command": [sys.executable, "-c", REPLICA], "gpu_count": 1}
    client.create_endpoint("double", template, min_replicas=1, timeout_seconds=600)
    wait_for(lambda: client.endpoint("double").warm, 60, "the replica")
    task = client.submit_task("double", 1)
    client.wait_task(task.id, timeout=60)
    victims = stack.pids("daphne")
    with psycopg.connect(stack.database_url(), autocommit=True) as database:
        signal_all(victims, signal.SIGKILL)
        # As a client that submitted it just before the kill.
        database.execute(_QUEUE_AGAIN, [task.id])
        wait_for(lambda: database.execute(_STATE, [task.id]).fetchone() == ("completed",), 60, "the task")
    client.remove_endpoint("double")


def test_supervisor_starts_again_after_a_kill(stack: Stack) -> None:
    assert stack.up is not None
    old = [pid for part in PARTS for pid in stack.pids(part)]
    stack.up.kill()
    stack.up.wait()
    wait_for(lambda: not any(map(is_alive, old)), 60, "its parts to end")
    stack.start()
    client = stack.client()
    assert client.wait(client.submit(["true"], gpus=1).id, timeout=60).state == "completed"
