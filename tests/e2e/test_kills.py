"""kill -9 of any part of the control plane under load: nothing acknowledged is lost, doubled or stuck (A50)."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import httpx
import psycopg
import pytest

from gpusched.agent.processes import descendants
from gpusched.client.errors import GpuschedError
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long]


class Load:
    """Submits small jobs over several connections as fast as answers come, through every failure."""

    def __init__(self, stack: Stack, ran: Path) -> None:
        self.stack, self.ran = stack, ran
        self.acknowledged: set[int] = set()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self._work) for _ in range(4)]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        script = f"echo $GPUSCHED_JOB_ID.$GPUSCHED_ATTEMPT >> {self.ran}"
        body = {"tenant": "default", "command": ["sh", "-c", script], "gpu_count": 1}
        headers = {"Authorization": f"Bearer {self.stack.token()}"}
        key = uuid.uuid4().hex
        with httpx.Client(base_url=self.stack.url, headers=headers, timeout=10) as http:
            while not self.stopping.is_set():
                try:
                    answer = http.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": key})
                except httpx.HTTPError:
                    self.stopping.wait(0.1)  # not acknowledged: the same key again
                    continue
                if answer.status_code == 201:
                    self.acknowledged.add(answer.json()["job_id"])
                    key = uuid.uuid4().hex
                    self.stopping.wait(0.05)
                else:
                    assert answer.status_code >= 500, answer.text
                    self.stopping.wait(0.1)

    def stop(self) -> set[int]:
        self.stopping.set()
        for thread in self.threads:
            thread.join(30)
        return self.acknowledged


KILLS = {
    "web": "daphne",
    "worker": "worker cycles",
    "postgres": "postgres",
    "agents": "",
    "everything": "",
}


@pytest.mark.parametrize("part", KILLS)
def test_kill_under_load_loses_no_job(stack: Stack, tmp_path: Path, part: str) -> None:
    """A50 (and A03: a submit without answer is repeated with its key and makes one job)."""
    load = Load(stack, tmp_path / "ran")
    try:
        wait_for(lambda: len(load.acknowledged) > 10, 30, "the load to begin")
        for _ in range(2):
            _kill(stack, part)
            began = time.monotonic()
            before = len(load.acknowledged)
            wait_for(lambda: len(load.acknowledged) > before + 10, 40, "submits to be answered again")  # noqa: B023
            print(f"{part}: answers again after {time.monotonic() - began:.1f} s")
    finally:
        acknowledged = load.stop()
    wait_for(lambda: _open_jobs(stack) == 0, 60, "all jobs to end")
    jobs = {job.id: job for job in stack.client().list(limit=10_000)}
    assert acknowledged <= set(jobs)
    assert {jobs[job].state for job in acknowledged} == {"completed"}
    lines = (tmp_path / "ran").read_text().split()
    assert len(lines) == len(set(lines)), "an attempt ran twice"
    ran = {int(line.split(".")[0]) for line in lines}
    assert ran >= acknowledged
    # Each attempt that ran is the only one that ended well; others were ended by the machinery before they ran.
    assert stack.client().status().available_gpus == 16


def _kill(stack: Stack, part: str) -> None:
    if part == "agents":
        for agent in stack.agents:
            os.kill(agent.pid, signal.SIGKILL)
            agent.wait()
        stack.agents.clear()
        stack.fleet(2)
    elif part == "everything":
        assert stack.kill("")
        assert stack.up is not None
        stack.up.wait()
        stack.start()
    else:
        wait_for(lambda: stack.kill(KILLS[part]), 30, f"{part} to run")  # it may not have started again yet


def _open_jobs(stack: Stack) -> int:
    try:
        return len(stack.client().list(state=("pending", "scheduled", "running", "stopping")))
    except GpuschedError:
        return -1


def test_second_worker_takes_over_when_the_active_one_is_killed(stack: Stack) -> None:
    """A51: cycles never overlap, and after the kill of one worker the other goes on within two seconds."""
    second = subprocess.Popen(
        [sys.executable, "manage.py", "worker", "cycles"], cwd=ROOT, env=stack.environment(), start_new_session=True
    )
    client = stack.client()
    assert stack.up is not None
    try:
        wait_for(lambda: _is_standing_by(stack), 60, "the second worker to stand by")
        os.kill(stack.up.pid, signal.SIGSTOP)  # else it starts the first worker again, which may lead again
        stack.kill("worker cycles")
        done = client.wait(client.submit(["true"], gpus=1).id, timeout=20)
        assert done.started_at is not None and done.submitted_at is not None
        assert (done.started_at - done.submitted_at).total_seconds() < 2
        workers = {int(str(cycle["worker"]).split(":")[1]) for cycle in _cycles(stack)}
        assert workers & set(descendants(second.pid))
        while len(spans := sorted(_span(cycle) for cycle in _cycles(stack))) <= 10:
            client.wait(client.submit(["true"], gpus=1).id, timeout=20)
        assert all(first[1] <= then[0] for first, then in pairwise(spans))
    finally:
        os.kill(stack.up.pid, signal.SIGCONT)
        os.killpg(second.pid, signal.SIGKILL)
        second.wait()


def _is_standing_by(stack: Stack) -> bool:
    """Return whether the latest statement of a session was an attempt to become the leader."""
    attempts = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock%' AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(stack.database_url()) as database:
        row = database.execute(attempts).fetchone()
    return row is not None and row[0] > 0


def _cycles(stack: Stack) -> list[dict[str, float | str]]:
    headers = {"Authorization": f"Bearer {stack.token()}"}
    answer = httpx.get(f"{stack.url}/api/v1/scheduling/cycles?limit=1000", headers=headers)
    found: list[dict[str, float | str]] = answer.json()["items"]
    return found


def _span(cycle: dict[str, float | str]) -> tuple[float, float]:
    began = datetime.fromisoformat(str(cycle["started_at"])).timestamp()
    taken = sum(float(cycle[f"{phase}_ms"]) for phase in ("sweep", "snapshot", "plan", "commit"))
    return began, began + taken / 1000
