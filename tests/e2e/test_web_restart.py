"""A web process that ends, as in an upgrade, first answers the requests that it has read."""

import signal
import threading

import httpx
import pytest

from gpusched.agent.processes import signal_all
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e
WEB = "daphne"


def test_each_submit_is_answered_while_the_web_process_ends(stack: Stack) -> None:
    answers: list[int | str] = []
    ended = threading.Event()

    def submit() -> None:
        while not ended.is_set():
            # On a new connection: an idle one may be closed just as a request is sent.
            try:
                answer = httpx.post(
                    f"{stack.url}/api/v1/jobs",
                    json={"command": ["true"], "gpu_count": 0},
                    headers={"Authorization": f"Bearer {stack.token()}", "Connection": "close"},
                    timeout=60,
                )
                answers.append(answer.status_code)
            except httpx.ConnectError:
                pass  # nothing was sent
            except httpx.HTTPError as error:
                answers.append(repr(error))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            pids, answered = stack.pids(WEB), len(answers)
            wait_for(lambda: len(answers) > answered + 8, 60, "answers")  # noqa: B023
            signal_all(pids, signal.SIGTERM)
            wait_for(lambda: stack.pids(WEB) not in ([], pids), 60, "another web process")  # noqa: B023
    finally:
        ended.set()
        for thread in threads:
            thread.join(90)
    assert set(answers) == {201}, [answer for answer in answers if answer != 201]
