"""PostgreSQL restarts while clients write, read and look: they are answered, or told to ask again (A59)."""

import threading
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import closing

import httpx
import pytest

from gpusched.client import Client
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")]
JOB = {"tenant": "default", "command": ["true"], "gpu_count": 0, "cpu_cores": 1}
READS = ("/api/v1/jobs?limit=1", "/api/v1/queue", "/api/v1/nodes", "/api/v1/events?since=0", "/metrics", "/ready")


class Visitors:
    """Threads that ask in a loop, and keep which status each answer had."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.statuses: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.made: dict[str, int] = {}  # key → job
        self.by_sdk: list[int] = []
        self.browser = self._signed_in()  # before any outage
        self._stopping = threading.Event()
        works: list[Callable[[], None]] = [self._submit, self._submit, self._read, self._look, self._use_sdk]
        self.threads = [threading.Thread(target=work) for work in works]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self.threads:
            thread.join(60)

    def http(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.stack.url, headers=headers, timeout=30)

    def http_of_admin(self) -> httpx.Client:
        return self.http(Authorization=f"Bearer {self.stack.token()}")

    def _note(self, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1
        is_well = answer.status_code < 300 or (answer.status_code == 503 and answer.headers.get("Retry-After"))
        if not is_well:
            self.wrong.append(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")

    def _submit(self) -> None:
        with self.http_of_admin() as http:
            key = uuid.uuid4().hex
            while not self._stopping.is_set():
                answer = http.post("/api/v1/jobs", json=JOB, headers={"Idempotency-Key": key})
                self._note(answer)
                if answer.status_code == 201:
                    self.made[key] = answer.json()["job_id"]
                    key = uuid.uuid4().hex
                self._stopping.wait(0.01)

    def _read(self) -> None:
        with self.http_of_admin() as http:
            while not self._stopping.is_set():
                for path in READS:
                    self._note(http.get(path))
                    self._stopping.wait(0.01)

    def _signed_in(self) -> httpx.Client:
        http = self.http()
        page = http.get("/login/")
        form = {"username": "admin", "password": self.stack.password}
        headers = {"X-CSRFToken": http.cookies["csrftoken"], "Referer": str(page.url)}
        assert http.post("/login/", data=form, headers=headers).status_code == 302
        return http

    def _look(self) -> None:
        with closing(self.browser):
            while not self._stopping.is_set():
                for path in ("/overview/", "/jobs/"):
                    self._note(self.browser.get(path))
                    self._stopping.wait(0.01)

    def _use_sdk(self) -> None:
        with Client(self.stack.url, self.stack.token(), tenant="default") as client:
            while not self._stopping.is_set():
                try:
                    self.by_sdk.append(client.submit(["true"], gpus=0).id)
                except Exception as error:  # noqa: BLE001 the test fails by it
                    self.wrong.append(f"the SDK gave up: {error!r}")
                self._stopping.wait(0.05)


def test_restarts_of_postgresql_lose_no_request(stack: Stack) -> None:
    """A59: only 2xx and 503 with `Retry-After`; the SDK and the agents bridge it; a repeated key gives the first
    answer."""
    visitors = Visitors(stack)
    try:
        wait_for(lambda: len(visitors.made) > 5 and visitors.by_sdk, 60, "the load to begin")
        for _ in range(3):
            before, by_sdk = len(visitors.made), len(visitors.by_sdk)
            stack.restart_database()
            wait_for(
                lambda: len(visitors.made) > before + 5 and len(visitors.by_sdk) > by_sdk + 2,  # noqa: B023
                60, "submits to be answered again",
            )  # fmt: skip
    finally:
        visitors.stop()
    assert visitors.wrong == []
    assert set(visitors.statuses) <= {200, 201, 503}
    assert visitors.statuses[503] > 0, "no restart was met"
    with visitors.http_of_admin() as http:
        for key, job_id in visitors.made.items():
            answer = http.post("/api/v1/jobs", json=JOB, headers={"Idempotency-Key": key})
            assert (answer.status_code, answer.json()["job_id"]) == (201, job_id)
            assert answer.headers["Idempotent-Replay"] == "true"
    client = stack.client()
    wait_for(lambda: not client.list(state=("pending", "scheduled", "running"), limit=1), 120, "all jobs to end")
    jobs = {job.id: job.state for job in client.list(limit=100_000)}
    assert {jobs[job_id] for job_id in (*visitors.made.values(), *visitors.by_sdk)} == {"completed"}
    assert client.status().online_nodes == 2
