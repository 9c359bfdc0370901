"""All pages, tabs and dialogs in Chromium, as admin in light, as member on a phone in dark: no complaint, nothing too wide,
and no serious finding of axe; the theme is there with the first paint; and everything goes by keys alone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, TimeoutError, expect

from tests.browser.views import failing, opened, views
from tests.system.people import PASSWORD, people
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.long]
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
# The admin's own pages are of another hand: tests/browser/test_admin.py looks at what is ours there. A feed that is
# disturbed looks alike to everybody: it is looked at once.
_WITH_FEED = r"(?!admin)(?!.*-(loading|polling|offline)$).*"
# What only admins have, and what was not looked at with the others.
_OF_ADMINS = r"quota.*|join.*|node|fleet-chosen|cluster-health|tenants|job-cancel|.*-(loading|polling|offline)"
RUN_AXE = """async () => {
  const found = await axe.run(document, {resultTypes: ['violations'],
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
    rules: {'target-size': {enabled: true}, 'label-content-name-mismatch': {enabled: true}}});
  return found.violations
    .map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => `${n.target} ${n.any.map(a => a.message).join(' ')}`).join(' | ')}`);
}"""


_LONGER = """() => [document.documentElement, ...document.querySelectorAll("main [data-view], main .card, .wall-map")]
  .filter(each => each.scrollHeight > each.clientHeight + 1
    && (each === document.documentElement || getComputedStyle(each).overflowY !== "visible"))
  .map(each => `${each.dataset.view ?? each.className}: ${each.scrollHeight} > ${each.clientHeight}`)"""


@pytest.fixture(scope="module")
def crowd(stack: Stack) -> Iterator[dict[str, list[int]]]:
    """Tenants with people; of ada a job that runs, one that waits and one that failed; of kofi one that waits for a
    kind of GPU that is not there."""
    identity = people(stack, scale=0.02, is_admin_changed=False)
    ada = identity["ada"]
    runs = ada.submit(["sh", "-c", "echo begun; sleep 600"], gpus=2, name="long-running-training-of-a-model")
    fails = ada.submit(["sh", "-c", "echo oh; exit 3"], gpus=1)
    waits = ada.submit(["sleep", "600"], gpus=16, ranks=2, gang_scheduling=True, name="too-much-for-now")
    ada.create_endpoint("embed", {"command": ["true"], "gpu_count": 1}, tenant="nlp", type="embedding")
    lacks = identity["kofi"].submit(["sleep", "600"], gpus=1, gpu_model="B200", name="too-new")
    wait_for(lambda: ada.get(runs.id).state == "running" and ada.get(fails.id).is_final, 60, "jobs to run and to fail")
    yield {"jobs": [runs.id, fails.id, waits.id]}
    ada.cancel(runs.id)
    ada.cancel(waits.id)
    identity["kofi"].cancel(lacks.id)


def enter(browser: Browser, stack: Stack, user: str, word: str, **mode: Any) -> Page:
    context: BrowserContext = browser.new_context(base_url=stack.url, **mode)
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


def look_at(page: Page, name: str, width: int) -> list[str]:
    """Return what is too wide, and what axe reports."""
    wide = page.evaluate("document.documentElement.scrollWidth")
    page.evaluate(Path(AXE).read_text())
    result = [f"{name} {finding}" for finding in page.evaluate(RUN_AXE)]
    cut = page.evaluate(
        "[...document.querySelectorAll('tr.detail')].filter(e => e.scrollHeight > e.clientHeight + 1).length"
    )
    result += [f"{name}: what a row opens to is cut off"] * bool(cut)
    return result if wide <= width else [*result, f"{name} is {wide} px wide"]


def too_wide_magnified(page: Page, name: str) -> list[str]:
    """At 320 px, which is 1280 px magnified four times (WCAG 1.4.10), there is nothing to the right either."""
    size = page.viewport_size
    assert size is not None
    page.set_viewport_size({"width": 320, "height": size["height"]})
    try:
        # What is drawn by script is laid out anew in the next frames. A function: an expression would be
        # evaluated anew in each frame, which the page's content security policy refuses.
        page.wait_for_function("() => document.documentElement.scrollWidth <= 320", timeout=5_000)
    except TimeoutError:
        return [f"{name} is {page.evaluate('document.documentElement.scrollWidth')} px wide at 320"]
    finally:
        page.set_viewport_size(size)
    return []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("user", "theme", "width", "only"),
    [("admin", "light", 1440, _WITH_FEED), ("ada", "dark", 360, _WITH_FEED), ("admin", "dark", 390, _OF_ADMINS)],
)
def test_every_page_is_accessible_and_quiet(
    chromium: Browser, stack: Stack, crowd: dict[str, list[int]],
    user: str, theme: Literal["light", "dark"], width: int, only: str,
) -> None:  # fmt: skip
    word = stack.password if user == "admin" else PASSWORD
    mode: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
    page = enter(chromium, stack, user, word, reduced_motion="reduce", **mode)
    complaints = listen(page)
    findings: list[str] = []
    paths_of: dict[str, set[str]] = {}
    looked_at = [view for view in views(page) if re.fullmatch(only, view.name) and not view.is_anonymous]
    assert looked_at
    for view in looked_at:
        with opened(page, view) as (visible, status):
            if status >= 400:
                complaints[:] = [message for message in complaints if "Failed to load resource" not in message]
            if view.feed != "silent":
                waits = visible.locator("[data-live][data-view]:not(.is-on)")
                expect(waits, view.name).to_have_count(0, timeout=30_000)
            findings += look_at(visible, view.name, width)
            if width == 360 and "-" not in view.name:
                findings += too_wide_magnified(visible, view.name)
            if status < 400:
                description = visible.locator("meta[name=description]").get_attribute("content") or ""
                paths_of.setdefault(description, set()).add(urlsplit(view.path).path)
    findings += [
        f"{paths} share the description {text!r}" for text, paths in paths_of.items() if not text or len(paths) > 1
    ]
    page.context.close()
    assert not findings + complaints, "\n".join(findings + complaints)


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 360)])
def test_error_pages_are_accessible(
    chromium: Browser, stack: Stack, crowd: dict[str, list[int]], theme: Literal["light", "dark"], width: int
) -> None:
    """400 and more: what happened, what to do next, the request's id, and a way on."""
    mode: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": theme}
    page = enter(chromium, stack, "ada", PASSWORD, **mode)
    stranger = chromium.new_context(base_url=stack.url, **mode).new_page()
    findings: list[str] = []

    def look(at: Page, code: str) -> None:
        expect(at.locator("main")).to_contain_text(code)
        expect(at.get_by_role("link", name="Go to the overview")).to_be_visible()
        findings.extend(look_at(at, code, width))

    for path, code in (("/jobs/999999999/", "404"), ("/nowhere/", "404"), ("/tenants/vision/quota/", "40")):
        page.goto(path)
        look(page, code)
    page.goto("/join/")
    expect(page.locator("main")).to_be_visible()
    with failing(stack) as path:
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == 500
        look(page, "The server failed")
        expect(page.locator("main code")).not_to_be_empty()
    for view in [view for view in views(page) if view.name == "form-too-old"]:
        with opened(stranger, view) as (visible, _):
            look(visible, "403")
    page.context.close()
    stranger.context.close()
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize("path", ["/overview/", "/overview/?wall=1"])
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1920, 1080)])
def test_overview_fits_one_screen(page: Page, crowd: dict[str, list[int]], path: str, width: int, height: int) -> None:
    """The four questions of home are answered without scrolling: neither the page nor a part of it."""
    page.set_viewport_size({"width": width, "height": height})
    page.goto(path)
    expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
    expect(page.locator("[data-view=overview-waiting]")).to_contain_text("constraint")
    assert page.evaluate(_LONGER) == []


def test_theme_is_set_before_first_paint(chromium: Browser, stack: Stack) -> None:
    """The stored theme overrides the system, without a flash."""
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
    """Press Tab until the element has the focus."""
    target.wait_for()
    for _ in range(120):
        if target.evaluate("each => each === document.activeElement"):
            return
        target.page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to {target}")


def test_pages_work_by_keyboard_alone(chromium: Browser, stack: Stack, crowd: dict[str, list[int]]) -> None:
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
    expect(page.locator("tr.detail")).to_contain_text("Ahead of it")
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
    expect(page.locator("#node-now .headline")).to_contain_text("Accepts jobs")
    keys.press("g")
    keys.press("s")
    page.wait_for_url("**/submit/")
    tab_to(page.locator("#id_command"))
    keys.type("true")
    tab_to(page.get_by_role("button", name="Submit", exact=True))
    keys.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    page.context.close()
