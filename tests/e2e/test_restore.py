"""A restored backup continues (A85): same ids, no job runs twice, agents adopt what still runs."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from gpusched.client import Client, NotFound
from jobs.lifecycle.restored_ids import SKIPPED_IDS
from tests.system.stack import ROOT, Stack
from tests.waiting import until_exists, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

YOUNGER_SECONDS = 60_123  # so that its process can be found


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(heartbeat_seconds=0.5) as running:
        running.agent("--pretend", "1:A100:40960:8:64:65536", name="n", own_jobs=False)
        wait_for(lambda: running.client().status().online_nodes == 1, 60, "the node to be online")
        yield running


def manage(stack: Stack, *words: str, code: int = 0) -> str:
    result = subprocess.run(
        [sys.executable, "manage.py", *words], cwd=ROOT, env=stack.environment(), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


def recording(file: Path, then: str) -> list[str]:
    """Return a command that adds a line to `file` each time it starts."""
    return ["sh", "-c", f"echo started >> {file}; {then}"]


def runs(client: Client, job_id: int) -> bool:
    return client.get(job_id).state == "running"


def starts(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def is_younger_alive() -> bool:
    return any(
        process.info["cmdline"] == ["sleep", str(YOUNGER_SECONDS)] for process in psutil.process_iter(["cmdline"])
    )


def test_restored_backup_continues_and_runs_no_job_twice(stack: Stack) -> None:
    """A85. Of the jobs that run at the backup, one still runs after the restore, and one has ended in between, which
    only its agent still knows. Another one is younger than the backup: the server does not know it, and it is stopped.
    A job that waits keeps its id and its place."""
    client, place = stack.client(), stack.directory / "starts"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    until = f"{until_exists(place / 'go')}; exit 3"
    running = client.submit(recording(place / "running", "exec sleep 600"), gpus=1, name="running")
    ending = client.submit(recording(place / "ending", until), gpus=1, name="ending")
    done = client.submit(recording(place / "done", "true"), gpus=1, name="done")
    waiting = client.submit(recording(place / "waiting", "true"), gpus=8, name="waiting")
    client.wait(done.id, timeout=60)
    for job in (running, ending):
        wait_for(partial(runs, client, job.id), 60, f"{job.id} to run")
    file = Path(manage(stack, "backup").split()[0])
    assert file.stat().st_mode & 0o077 == 0
    younger = client.submit(recording(place / "younger", f"exec sleep {YOUNGER_SECONDS}"), gpus=0, name="younger")
    wait_for(is_younger_alive, 60, "the younger job to run")
    (place / "go").touch()
    wait_for(lambda: client.get(ending.id).exit_code == 3, 60, "the job to end after the backup")
    assert "is running" in manage(stack, "restore", str(file), code=1)
    assert stack.up is not None
    stack.up.send_signal(signal.SIGTERM)
    stack.up.wait(60)
    assert "restored 4 jobs" in manage(stack, "restore", str(file))
    stack.start()
    client = stack.client()
    with pytest.raises(NotFound):
        client.get(younger.id)
    wait_for(lambda: client.get(ending.id).exit_code == 3, 60, "the agent to report the end again")
    jobs = {job.name: job for job in (client.get(job.id) for job in (running, ending, done, waiting))}
    assert {name: job.id for name, job in jobs.items()} == {
        "running": running.id, "ending": ending.id, "done": done.id, "waiting": waiting.id
    }  # fmt: skip
    assert (jobs["running"].state, jobs["running"].attempt) == ("running", 1)
    assert (jobs["done"].state, jobs["waiting"].state) == ("completed", "pending")
    wait_for(lambda: not is_younger_alive(), 60, "the job that the server does not know to be stopped")
    client.cancel(running.id)
    client.wait(running.id, timeout=60)
    client.wait(waiting.id, timeout=60)
    for name in ("running", "ending", "done", "waiting", "younger"):
        assert starts(place / name) == 1, name
    assert client.submit(["true"], gpus=0).id > younger.id + SKIPPED_IDS // 2
