"""A page without a browser: its connection to the live feed, and the rows that it shows."""

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

TIMEOUT_SECONDS = 60.0
# As in frontend/src/live: the first and the longest pause between two tries, and how long a connection may be silent.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, DEAD_SECONDS = 0.3, 5.0, 15.0


def answers(url: str) -> bool:
    """Return whether a head, or a proxy with a head, is ready."""
    try:
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def log_in(url: str, password: str) -> str:
    """Log in as the admin, and return the cookie of the session."""
    with httpx.Client(base_url=url, timeout=30) as browser:
        browser.get("/login/")
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": browser.cookies["csrftoken"]}
        assert browser.post("/login/", data=form).status_code == 302
        return str(browser.cookies["sessionid"])


@contextmanager
def open_feed(url: str, cookie: str, *topics: str) -> Iterator[ClientConnection]:
    headers = {"Cookie": f"sessionid={cookie}", "Origin": url}
    address = url.replace("http", "ws", 1) + "/ws/live/"
    with connect(address, additional_headers=headers, open_timeout=10, close_timeout=1) as feed:
        feed.send(json.dumps({"subscribe": topics}))
        yield feed


class Page:
    """A logged in page: the rows of its topics. It reads its connection in `until` alone, and never connects again."""

    def __init__(self, stack: ExitStack, url: str, cookie: str, *topics: str) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.socket = stack.enter_context(open_feed(url, cookie, *topics))

    def until(self, condition: Any) -> None:
        while not condition(self.rows):
            take_all(self.rows, self.socket.recv(TIMEOUT_SECONDS))


def take_all(rows: dict[str, dict[str, Any]], text: str | bytes) -> None:
    received = json.loads(text)
    for message in received if isinstance(received, list) else [received]:
        _take(rows, message)


def merge(row: dict[str, Any], changes: dict[str, Any]) -> None:
    """Merge changes into an object, as docs/live.md explains `patch`; other values are replaced."""
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(row.get(name), dict):
            merge(row[name], value)
        else:
            row[name] = value


def _take(rows_of: dict[str, dict[str, Any]], message: dict[str, Any]) -> None:
    if "snapshot" in message:
        rows_of[message["topic"]] = message["snapshot"]
    elif "topic" in message:
        rows = rows_of[message["topic"]]
        rows.update(message.get("set", {}))
        for key, changes in message.get("patch", {}).items():
            merge(rows[key], changes)
        for key in message.get("gone", ()):
            del rows[key]


class LivePage:
    """A page that shows the latest jobs and connects again as frontend/src/live/socket.ts does. `shown`: when it first
    showed each job."""

    def __init__(self, url: str, cookie: str) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.shown: dict[int, float] = {}
        self._url, self._cookie = url, cookie
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state(self, job: int) -> str:
        """Return the state that the page shows of a job; empty if it does not show the job."""
        return str(self.rows.get("jobs", {}).get(str(job), {}).get("state", ""))

    def close(self) -> None:
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        tries = 0
        while not self._has_ended.is_set():
            try:
                with open_feed(self._url, self._cookie, "jobs") as feed:
                    heard_at = time.monotonic()
                    while not self._has_ended.is_set() and time.monotonic() - heard_at < DEAD_SECONDS:
                        try:
                            text = feed.recv(0.5)
                        except TimeoutError:
                            continue
                        heard_at, tries = time.monotonic(), 0
                        self._show(text)
            except (OSError, WebSocketException):
                pass  # connect again
            pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2**tries)
            self._has_ended.wait(pause * random.uniform(0.7, 1.0))
            tries = min(tries + 1, 10)

    def _show(self, text: str | bytes) -> None:
        take_all(self.rows, text)
        now = time.monotonic()
        for job in self.rows.get("jobs", {}):
            self.shown.setdefault(int(job), now)
