"""Pages without a WebSocket, without a network, or in a hidden tab."""

import json
import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, WebSocketRoute, expect

from tests.system.stack import Stack

pytestmark = pytest.mark.browser
TIMEOUT_SECONDS = 90
_LOOK = """hidden => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


class Wire:
    """The page's WebSocket: what went over it, and what cuts it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.heard: list[str] = []
        self.wanted: list[str] = []
        self.socket: WebSocketRoute | None = None
        page.route_web_socket("**/ws/live/", self._route)

    def _route(self, socket: WebSocketRoute) -> None:
        self.socket = socket
        server = socket.connect_to_server()

        def ask(message: Any) -> None:
            self.wanted = json.loads(message).get("subscribe", self.wanted)
            server.send(message)

        def tell(message: Any) -> None:
            self.heard.append(str(message))
            socket.send(message)

        socket.on_message(ask)
        server.on_message(tell)

    def cut(self) -> None:
        assert self.socket is not None
        self.socket.close()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.heard[-5:]
            self.page.wait_for_timeout(100)

    def hears(self, word: str) -> None:
        """From now on."""
        existing = len(self.heard)
        self.until(lambda: any(word in message for message in self.heard[existing:]))


def chip_of(page: Page) -> Locator:
    return page.locator("[data-freshness]")


def complete_a_job(page: Page, stack: Stack, name: str) -> Locator:
    """Return where the page shows a job that has just completed."""
    with stack.client() as client:
        job = client.wait(client.submit(["true"], gpus=1, name=name).id, timeout=TIMEOUT_SECONDS)
    return page.locator(f"tr[data-key='{job.id}'] .state-completed")


def test_page_polls_without_websocket(page: Page, stack: Stack) -> None:
    """Some proxies block WebSockets."""
    page.route_web_socket("**/ws/live/", lambda socket: socket.close())
    page.goto("/jobs/")
    expect(chip_of(page)).to_contain_text("polling", timeout=90_000)
    expect(chip_of(page)).to_have_class(re.compile("is-delayed"))
    expect(complete_a_job(page, stack, "polled")).to_be_visible(timeout=90_000)


def test_page_recovers_within_two_seconds_after_offline_minute(page: Page, stack: Stack) -> None:
    """A52, in the page's own time: it stands still until the rows are there again, so no timer had a part in that."""
    wire = Wire(page)
    page.clock.install()
    page.goto("/jobs/")
    expect(chip_of(page)).to_have_class(re.compile("is-live"), timeout=60_000)
    page.context.set_offline(True)
    wire.cut()
    page.clock.pause_at(datetime.now() + timedelta(seconds=60))
    completed = complete_a_job(page, stack, "meanwhile")
    expect(chip_of(page)).to_have_class(re.compile("is-offline"))
    assert not completed.is_visible()
    page.context.set_offline(False)
    wire.hears('"topic":"jobs"')
    for _ in range(19):
        page.clock.run_for(100)
    expect(completed).to_be_visible()
    expect(chip_of(page)).to_have_class(re.compile("is-live"))


def test_phone_header_fits_freshness_chip(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    wire = Wire(page)
    page.goto("/overview/")
    expect(chip_of(page)).to_contain_text("live")
    page.context.set_offline(True)
    wire.cut()
    expect(chip_of(page)).to_contain_text("last known", timeout=60_000)
    cut = "all => all.filter(e => e.clientWidth && e.scrollWidth > e.clientWidth).map(e => e.textContent.trim())"
    # Of the bell the number of what is unread lies over the edge, as it is meant to.
    assert page.locator(".top > :not(.bell)").evaluate_all(cut) == []
    page.context.set_offline(False)


def test_hidden_tab_is_silent_and_current_when_shown(page: Page, stack: Stack) -> None:
    wire = Wire(page)
    page.goto("/jobs/")
    expect(chip_of(page)).to_have_class(re.compile("is-live"), timeout=60_000)
    assert "jobs" in wire.wanted
    page.evaluate(_LOOK, True)
    wire.until(lambda: wire.wanted == [])
    wire.hears('"alive"')
    existing = len(wire.heard)
    completed = complete_a_job(page, stack, "unseen")
    wire.hears('"alive"')
    assert not [message for message in wire.heard[existing:] if '"topic":"jobs"' in message]
    assert not completed.is_visible()
    page.evaluate(_LOOK, False)
    expect(completed).to_be_visible(timeout=60_000)
