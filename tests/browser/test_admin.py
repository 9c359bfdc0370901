"""The admin index and the notices menu: live, in both themes, without serious axe findings in our part."""

import re
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import log_in
from tests.system.stack import ROOT, Stack

pytestmark = pytest.mark.browser
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async part => (await axe.run(part, {resultTypes: ['violations']})).violations
  .filter(v => v.impact === 'serious' || v.impact === 'critical').map(v => `${v.id}: ${v.nodes[0].html.slice(0, 200)}`)"""
TIMEOUT = 60_000


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_admin_index_is_live(chromium: Browser, stack: Stack, theme: Literal["light", "dark"]) -> None:
    context = chromium.new_context(base_url=stack.url, viewport={"width": 1440, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    log_in(page, stack.password)
    page.goto("/admin/")
    box = page.locator(".cluster-now")
    expect(box.locator("[data-freshness]")).to_have_class(re.compile("is-live"), timeout=TIMEOUT)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    running = box.locator("a.count", has_text="jobs running").locator("b")
    previous = int(running.inner_text())
    job = stack.client().submit(["sleep", "600"], gpus=1)
    expect(running).to_have_text(str(previous + 1), timeout=TIMEOUT)
    stack.client().cancel(job.id)
    expect(running).to_have_text(str(previous), timeout=TIMEOUT)
    page.evaluate(AXE.read_text())
    assert page.evaluate(SERIOUS, ".cluster-now") == []
    assert errors == []
    box.get_by_role("link", name="Fleet", exact=True).click()
    page.wait_for_url("**/fleet/")
    context.close()


def test_admin_quota_shows_effect_while_typing(page: Page, stack: Stack) -> None:
    """A07; and the whole form, with its members, has no serious finding."""
    page.set_default_timeout(TIMEOUT)
    page.goto("/admin/tenants/tenant/")
    page.get_by_role("link", name="default", exact=True).click()
    expect(page.locator("[name=memberships-0-role]")).to_be_visible()
    page.locator("[name=quota-0-max_gpus]").fill("100000")
    effect = page.locator("#quota-effect")
    expect(effect).to_contain_text("Effect of this edit", timeout=TIMEOUT)
    page.evaluate(AXE.read_text())
    assert page.evaluate(SERIOUS, "html") == []
    page.locator("[name=quota-0-max_gpus]").fill("")
    expect(effect).to_be_empty(timeout=TIMEOUT)


@pytest.mark.parametrize("width", [1440, 390])
def test_open_notices_menu_on_admin_index(page: Page, stack: Stack, width: int) -> None:
    client = stack.client()
    client.wait(client.submit(["true"], gpus=1, name="done-soon").id, timeout=60)
    page.set_viewport_size({"width": width, "height": 844})
    page.goto("/jobs/")
    page.locator(".bell summary").click()
    expect(page.locator(".bell-list li").first).to_contain_text("completed", timeout=TIMEOUT)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    panel = page.locator(".bell-panel").bounding_box()
    assert panel is not None
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= width
    page.evaluate(AXE.read_text())
    assert page.evaluate(SERIOUS, ".bell") == []
