"""Two web processes on one database: pages and agents of each receive changes made through the other, also after the
database has restarted and after one of the two was killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from gpusched.client import Client
from tests.system.page import TIMEOUT_SECONDS, Page, answers, log_in
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]


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


def all_see_a_job(stack: Stack, pages: list[Page]) -> None:
    job = stack.client().submit(["sleep", "1"], gpus=1)
    for page in pages:
        page.until(lambda rows: rows["jobs"].get(str(job.id), {}).get("state") == "completed")


def test_two_web_processes_share_changes_and_survive_the_death_of_one(other: tuple[Stack, str]) -> None:
    """A52: the page that lost its server shows at the other what a fresh load shows."""
    stack, second = other
    with ExitStack() as sockets:
        check(stack, second, sockets, log_in(stack.url, stack.password))


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
