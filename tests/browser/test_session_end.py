"""Pages whose session ends while they are open."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.system.stack import Stack

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("is_polling", [False, True], ids=["socket", "polling"])
@pytest.mark.parametrize("path", ["/overview/", "/nodes/{node}/"])
def test_page_reports_session_end_without_console_error(page: Page, stack: Stack, path: str, is_polling: bool) -> None:
    if is_polling:
        page.route_web_socket("**/ws/live/", lambda socket: socket.close())
    errors: list[str] = []
    page.on(
        "console",
        lambda message: errors.append(f"{message.text} {message.location}") if message.type == "error" else None,
    )
    page.clock.install()
    page.goto(path.format(node=stack.client().nodes()[0].name))
    chip = page.locator("[data-freshness]")
    page.clock.run_for(15_000)
    expect(chip).to_contain_text(re.compile("polling" if is_polling else "live"))
    page.wait_for_load_state("networkidle")
    assert errors == []
    control = page.context.new_page()
    control.goto("/tokens/")
    control.get_by_label("Account").click()
    control.get_by_role("button", name="Log out").click()
    control.wait_for_url("**/login/**")
    page.clock.run_for(15_000)
    expect(chip).to_have_text("logged out")
    for _ in range(4):
        page.clock.run_for(15_000)
    expect(chip).to_have_text("logged out")
    assert errors == []
