"""A page behind a proxy that lets no WebSocket through goes on by asking, and says that it does."""

import re

import pytest
from playwright.sync_api import Page, expect

from benchmarks.stack import Stack

pytestmark = pytest.mark.browser


def test_without_a_websocket_the_page_polls(page: Page, stack: Stack) -> None:
    page.route_web_socket("**/ws/live/", lambda socket: socket.close())
    page.goto("/jobs/")
    chip = page.locator("[data-freshness]")
    expect(chip).to_contain_text("polling", timeout=90_000)
    expect(chip).to_have_class(re.compile("is-delayed"))
    job = stack.client().submit(["true"], gpus=1, name="polled")
    expect(page.locator(f"tr[data-key='{job.id}'] .state-completed")).to_be_visible(timeout=90_000)
