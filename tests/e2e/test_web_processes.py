"""Several web processes on one port: if one dies, another answers new requests."""

import os
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(web_processes=2) as running:
        yield running


def answers(stack: Stack, number: int) -> list[int]:
    """Return the answers to this many submits, each over a connection of its own."""
    headers = {"Authorization": f"Bearer {stack.token()}"}
    body = {"tenant": "default", "command": ["true"]}
    return [
        httpx.post(f"{stack.url}/api/v1/jobs", json=body, headers=headers, timeout=60).status_code
        for _ in range(number)
    ]


def test_no_request_fails_when_one_of_two_web_processes_dies(stack: Stack) -> None:
    wait_for(lambda: len(stack.pids("daphne")) == 2, 60, "two web processes")
    for victim in stack.pids("daphne"):
        os.kill(victim, signal.SIGKILL)
        assert answers(stack, 20) == [201] * 20
        wait_for(lambda: len(set(stack.pids("daphne")) - {victim}) == 2, 60, "its return")  # noqa: B023
    assert stack.client().status().total_jobs == 40
