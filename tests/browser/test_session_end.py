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


@pytest.mark.parametrize("leaves_by", ["typing", "submitting"])
def test_form_keeps_what_was_typed_over_the_login(page: Page, stack: Stack, leaves_by: str) -> None:
    """The session ends while the form is filled in; a later visit begins anew."""
    page.goto("/submit/")
    page.locator("#id_name").fill("typed before")
    page.wait_for_load_state("networkidle")
    page.context.clear_cookies(name="sessionid")
    if leaves_by == "typing":
        page.locator("#id_command").press_sequentially("true")
    else:
        page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url("**/login/**")
    page.locator("#id_username").fill("admin")
    page.locator("#id_password").fill(stack.password)
    page.locator("main button[type=submit]").click()
    page.wait_for_url("**/submit/")
    expect(page.locator("#id_name")).to_have_value("typed before")
    page.goto("/tokens/")
    page.goto("/submit/")
    expect(page.locator("#id_name")).to_have_value("")
