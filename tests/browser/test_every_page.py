"""All pages, tabs and dialogs in Chromium, as admin in light, as member on a phone in dark: no complaint, nothing too wide,
and no serious finding of axe; the theme is there with the first paint; and everything goes by keys alone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect

from benchmarks.pictured import open_view, views
from benchmarks.scenes import PASSWORD, people
from benchmarks.stack import ROOT, Stack, wait_for

pytestmark = pytest.mark.browser
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
_RUN_AXE = """async () => {
  const found = await axe.run(document, {resultTypes: ['violations'],
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']});
  return found.violations.filter(v => v.impact === 'serious' || v.impact === 'critical')
    .map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => `${n.target} ${n.any.map(a => a.message).join(' ')}`).join(' | ')}`);
}"""


@pytest.fixture(scope="module")
def crowd(stack: Stack) -> Iterator[dict[str, list[int]]]:
    """Tenants with people; of ada a job that runs, one that waits and one that failed."""
    who = people(stack, scale=0.02, is_admin_changed=False)
    ada = who["ada"]
    runs = ada.submit(["sh", "-c", "echo begun; sleep 600"], gpus=2, name="long-running-training-of-a-model")
    fails = ada.submit(["sh", "-c", "echo oh; exit 3"], gpus=1)
    waits = ada.submit(["sleep", "600"], gpus=16, ranks=2, gang_scheduling=True, name="too-much-for-now")
    wait_for(lambda: ada.get(runs.id).state == "running" and ada.get(fails.id).is_final, 60, "jobs to run and to fail")
    yield {"jobs": [runs.id, fails.id, waits.id]}
    ada.cancel(runs.id)
    ada.cancel(waits.id)


def enter(browser: Browser, stack: Stack, user: str, word: str, **how: Any) -> Page:
    context: BrowserContext = browser.new_context(base_url=stack.url, **how)
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto("/login/")
    page.locator("#id_username").fill(user)
    page.locator("#id_password").fill(word)
    page.keyboard.press("Enter")
    page.locator("nav.rail").wait_for()
    return page


def listen(page: Page) -> list[str]:
    complaints: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(f"{page.url}: {message.text}")

    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
    return complaints


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("user", "theme", "width"), [("admin", "light", 1440), ("ada", "dark", 360)])
def test_every_page(
    chromium: Browser, stack: Stack, crowd: dict[str, list[int]], user: str, theme: Literal["light", "dark"], width: int
) -> None:
    word = stack.password if user == "admin" else PASSWORD
    page = enter(
        chromium,
        stack,
        user,
        word,
        viewport={"width": width, "height": 900},
        color_scheme=theme,
        reduced_motion="reduce",
    )
    complaints = listen(page)
    findings: list[str] = []
    axe = Path(AXE).read_text()
    # The admin's own pages are of another hand: tests/browser/test_admin.py looks at what is ours there.
    for view in [view for view in views(page) if not view.name.startswith("admin") and not view.is_for_nobody]:
        if open_view(page, view) >= 400:
            complaints[:] = [said for said in complaints if "Failed to load resource" not in said]
        expect(page.locator("[data-live][data-view]:not(.is-on)"), view.name).to_have_count(0, timeout=30_000)
        if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
            findings.append(f"{view.name} is {wide} px wide")
        page.evaluate(axe)
        findings += [f"{view.name} {finding}" for finding in page.evaluate(_RUN_AXE)]
    page.context.close()
    assert not findings + complaints, "\n".join(findings + complaints)


def test_the_theme_is_there_with_the_first_paint(chromium: Browser, stack: Stack) -> None:
    """What this browser was told wins over the system, without a flash of the other."""
    page = enter(chromium, stack, "admin", stack.password, color_scheme="light")
    for now in ("as the system", "light"):
        page.get_by_role("button", name=f"Theme: {now}").click()
    page.get_by_role("button", name="Theme: dark").wait_for()
    page.context.add_init_script(
        "requestAnimationFrame(function look() { if (!document.body) return requestAnimationFrame(look);"
        " window.first = getComputedStyle(document.body).backgroundColor; })"
    )
    page.goto("/queue/")
    page.wait_for_load_state()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate("window.first") == page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page.evaluate("window.first") == "rgb(14, 16, 19)"
    page.context.close()


def tab_to(target: Locator) -> None:
    """As a person without a mouse: Tab, until it is there."""
    target.wait_for()
    for _ in range(120):
        if target.evaluate("each => each === document.activeElement"):
            return
        target.page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {target}")


def test_by_keys_alone(chromium: Browser, stack: Stack, crowd: dict[str, list[int]]) -> None:
    """From the login to a GPU, its job, a node and back, with help; the mouse is not touched."""
    page = enter(chromium, stack, "admin", stack.password, viewport={"width": 1440, "height": 900})
    keys = page.keyboard
    keys.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Ctrl K")
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    keys.press("g")
    keys.press("f")
    page.wait_for_url("**/fleet/")
    canvas = page.locator("canvas")
    expect(canvas).to_be_visible()
    tab_to(canvas)
    expect(page.locator(".tooltip")).to_contain_text("GPU 0")
    keys.press("ArrowRight")
    expect(page.locator(".tooltip")).to_contain_text("GPU 1")
    keys.press("Enter")
    expect(page).to_have_url(re.compile(r"[?&]gpu=[^&]+/1"))
    expect(page.locator("[data-fleet-panel]")).to_contain_text("GPU 1")
    question = page.locator("#do-gpu summary")
    expect(question).to_be_visible()
    tab_to(question)
    keys.press("Enter")
    tab_to(page.locator("#do-gpu input[name=note]"))
    keys.type("by keys")
    keys.press("Enter")
    expect(page.locator("[data-fleet-panel] .state-quarantined")).to_contain_text("by keys")
    tab_to(page.locator("#do-gpu").get_by_role("button", name="Clear"))
    keys.press("Enter")
    expect(page.locator("[data-fleet-panel] .state-quarantined")).to_have_count(0)
    keys.press("Escape")
    expect(canvas).to_be_focused()
    expect(page).not_to_have_url(re.compile("gpu="))
    keys.press("t")
    expect(page.locator("[data-view=fleet] table")).to_contain_text("Temperature")
    expect(page).to_have_url(re.compile("view=table"))
    keys.press("Control+k")
    page.get_by_role("combobox", name="Go to").wait_for()
    keys.type("too-much")
    expect(page.get_by_role("option").filter(has_text="too-much-for-now")).to_be_visible()
    while "too-much" not in (page.locator("[role=option][aria-selected=true]").text_content() or ""):
        keys.press("ArrowDown")
    keys.press("Enter")
    page.wait_for_url(f"**/jobs/{crowd['jobs'][2]}/**")
    tab_to(page.get_by_role("button", name="Hold"))
    keys.press("Enter")
    expect(page.locator("[data-view=job-head] .state-held")).to_be_visible()
    tab_to(page.get_by_role("button", name="Release"))
    keys.press("Enter")
    expect(page.locator("[data-view=job-head] .state-held")).to_have_count(0)
    keys.press("g")
    keys.press("q")
    page.wait_for_url("**/queue/")
    expect(page.locator("table.queue tr[data-href]").first).to_be_visible()
    keys.press("j")
    keys.press("Tab")
    keys.press("Enter")
    expect(page.locator("tr.detail")).to_contain_text("Before it")
    keys.press("Escape")
    keys.press("g")
    keys.press("n")
    page.wait_for_url("**/nodes/")
    expect(page.locator("main tr[data-key]").first).to_be_visible()
    keys.press("/")
    keys.type("nothing like this")
    expect(page.locator("main tr[data-key]:visible")).to_have_count(0)
    keys.press("Escape")
    keys.press("j")
    while "lost" in page.locator("main tr[data-key]:focus").inner_text():  # that of a machine of another test
        keys.press("j")
    keys.press("Enter")
    page.wait_for_url(re.compile(r"/nodes/[^/]+/"))
    tab_to(page.locator("#node-actions summary", has_text="Cordon"))
    keys.press("Enter")
    tab_to(page.locator("#node-actions details[open] input[name=note]"))
    keys.type("by keys")
    keys.press("Enter")
    expect(page.locator("#node-now .headline")).to_contain_text("by keys")
    tab_to(page.locator("#node-actions").get_by_role("button", name="Uncordon"))
    keys.press("Enter")
    expect(page.locator("#node-now .headline")).to_contain_text("Takes jobs")
    keys.press("g")
    keys.press("s")
    page.wait_for_url("**/submit/")
    tab_to(page.locator("#id_command"))
    keys.type("true")
    tab_to(page.get_by_role("button", name="Submit", exact=True))
    keys.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    page.context.close()
