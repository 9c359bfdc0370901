"""A new credential for an agent, with real processes: its job runs on, and no kill locks the node out (A84)."""

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.processes import is_alive
from tests.system.stack import A100, Stack
from tests.waiting import until_random_moment, wait_for

pytestmark = pytest.mark.e2e
NODE = "east-01"
NO_TOKEN = "j0000000000.none"
ROUNDS = 6


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        agent(running, running.client().join_token().token)
        wait_for(lambda: running.client().status().online_nodes == 1, 60, "the node")
        yield running


def agent(stack: Stack, token: str) -> "subprocess.Popen[bytes]":
    return stack.agent("--pretend", f"1:{A100}:81920:2:8:65536", name="east", token=token, own_jobs=False)


def credential(stack: Stack) -> str:
    path = stack.directory / "east" / "nodes" / NODE / "identity.json"
    return str(json.loads(path.read_text())["credential"])


def status(stack: Stack, secret: str) -> int:
    """400 if the server accepts the credential: the request has no key."""
    return httpx.post(f"{stack.url}/agent/logs", headers={"Authorization": f"Bearer {secret}"}).status_code


def is_replaced(stack: Stack, old: str) -> bool:
    return credential(stack) != old and stack.client().node(NODE).rotation_asked_at is None


def test_credential_rotates_under_a_job_and_kills_of_agent_and_server(stack: Stack, tmp_path: Path) -> None:
    client, chance = stack.client(), random.Random(21)
    job = client.submit(
        [
            "sh",
            "-c",
            f"echo $$ > {tmp_path}/pid; while [ -e {tmp_path}/pid ] && [ ! -e {tmp_path}/stop ]; do sleep 0.1; done",
        ]
    )
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 30, "the job to run")
    pid = int((tmp_path / "pid").read_text())
    process = stack.agents[0]
    for number in range(ROUNDS):
        old, issued_at = credential(stack), client.node(NODE).credential_at
        assert "gets a new credential" in client.rotate_node_credential(NODE).message
        if number:
            # After none to all of the steps, which take about a heartbeat.
            until_random_moment(chance, 0, 2.5)
            if number % 2:
                process.kill()
                process.wait(20)
                stack.agents.remove(process)
                process = agent(stack, NO_TOKEN)
            else:
                assert stack.kill("daphne")
                wait_for(stack.is_ready, 60, "the server")
        wait_for(lambda: is_replaced(stack, old), 60, f"the new credential in round {number}")  # noqa: B023
        wait_for(lambda: status(stack, credential(stack)) == 400, 30, "the server to accept it")
        assert status(stack, old) == 401
        assert client.node(NODE).credential_at != issued_at
    assert is_alive(pid)
    assert client.get(job.id).attempt == 1
    (tmp_path / "stop").touch()
    assert client.wait(job.id, timeout=60).state == "completed"
