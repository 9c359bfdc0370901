"""Two web processes on one database: pages and agents of each receive changes made through the other, also after the
database has restarted and after one of the two was killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from gpusched.client import Client
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module")
def other() -> Iterator[tuple[Stack, str]]:
    """A running system, and the address of its second web process, to which its only agent speaks."""
    with Stack() as stack:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "daphne",
            "-b",
            "127.0.0.1",
            "-p",
            str(port),
            "-v",
            "0",
            "gpusched.asgi:application",
        ]
        with (stack.directory / "second.log").open("ab") as log:
            web = subprocess.Popen(command, cwd=ROOT, env=stack.environment(), stdout=log, stderr=log)
        try:
            first, second = stack.url, f"http://127.0.0.1:{port}"
            wait_for(lambda: answers(second), TIMEOUT_SECONDS, "the second web process")
            stack.url = second
            stack.fleet(1)
            stack.url = first
            yield stack, second
        finally:
            web.terminate()
            web.wait(20)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


class Page:
    """A logged in page of one web process: the rows of its topics."""

    def __init__(self, stack: ExitStack, url: str, cookie: str, *topics: str) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        headers = {"Cookie": f"sessionid={cookie}", "Origin": url}
        address = url.replace("http", "ws", 1) + "/ws/live/"
        self.socket = stack.enter_context(connect(address, additional_headers=headers))
        self.socket.send(json.dumps({"subscribe": topics}))

    def until(self, condition: Any) -> None:
        while not condition(self.rows):
            told = json.loads(self.socket.recv(TIMEOUT_SECONDS))
            for message in told if isinstance(told, list) else [told]:
                self.take(message)

    def take(self, message: dict[str, Any]) -> None:
        if "snapshot" in message:
            self.rows[message["topic"]] = message["snapshot"]
        elif "topic" in message:
            rows = self.rows[message["topic"]]
            rows.update(message.get("set", {}))
            for key, changes in message.get("patch", {}).items():
                rows[key].update(changes)
            for key in message.get("gone", ()):
                del rows[key]


def all_see_a_job(stack: Stack, pages: list[Page]) -> None:
    job = stack.client().submit(["sleep", "1"], gpus=1)
    for page in pages:
        page.until(lambda rows: rows["jobs"].get(str(job.id), {}).get("state") == "completed")


def log_in(stack: Stack) -> str:
    with httpx.Client(base_url=stack.url, timeout=30) as browser:
        browser.get("/login/")
        form = {"username": "admin", "password": stack.password, "csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        assert browser.post("/login/", data=form).status_code == 302
        return str(browser.cookies["sessionid"])


def test_two_web_processes_share_changes_and_survive_the_death_of_one(other: tuple[Stack, str]) -> None:
    """A52: the page that lost its server shows at the other what a fresh load shows."""
    stack, second = other
    with ExitStack() as sockets:
        check(stack, second, sockets, log_in(stack))


def check(stack: Stack, second: str, sockets: ExitStack, cookie: str) -> None:
    pages = [Page(sockets, url, cookie, "jobs", "queue") for url in (stack.url, second)]
    for page in pages:
        page.until(lambda rows: len(rows) == 2)
    all_see_a_job(stack, pages)
    stack.restart_database()
    wait_for(lambda: answers(stack.url) and answers(second), TIMEOUT_SECONDS, "both to be ready again")
    all_see_a_job(stack, pages)
    assert stack.kill("daphne")
    with Client(second, stack.token(), tenant="default") as client:
        again = client.wait(client.submit(["true"], gpus=1).id, timeout=TIMEOUT_SECONDS)
    pages[1].until(lambda rows: rows["jobs"].get(str(again.id), {}).get("state") == "completed")
    moved = Page(sockets, second, cookie, "jobs", "queue")
    moved.until(lambda rows: len(rows) == 2)
    fresh = httpx.get(f"{second}/live/", params={"topic": ["jobs", "queue"]}, cookies={"sessionid": cookie}, timeout=30)
    assert moved.rows == fresh.json()["topics"] == pages[1].rows
    wait_for(stack.is_ready, TIMEOUT_SECONDS, "the first web process to be back")
    last = stack.client().submit(["true"], gpus=1)
    pages[1].until(lambda rows: rows["jobs"].get(str(last.id), {}).get("state") == "completed")
