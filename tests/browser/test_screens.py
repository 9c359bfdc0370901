"""Screen widths, forced colours and print."""

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import log_in
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
_WIDTHS = (641, 720, 1024, 1180, 1280, 1366, 1440, 1600)
# Elements beyond the edge of a container that clips and does not scroll.
_CUT_OFF = """() => [...document.querySelectorAll("main th")].filter((head) => {
  const end = head.getBoundingClientRect().right;
  for (let at = head.parentElement; at !== document.body; at = at.parentElement) {
    const { overflowX } = getComputedStyle(at);
    if (/auto|scroll/.test(overflowX)) return false;
    if (/clip|hidden/.test(overflowX) && end > at.getBoundingClientRect().right + 1) return true;
  }
  return end > document.documentElement.clientWidth + 1;
}).map((head) => `${location.pathname} ${innerWidth}: ${head.textContent}`)"""
_FILLS = """() => ["busy", "free"].map((name) => {
  const cell = document.querySelector(`.legend .cell-${name}`);
  return getComputedStyle(cell).backgroundColor;
})"""
_HAS_THESE_COLOURS = """(wanted) => {
  const canvas = document.querySelector("[data-view=fleet] canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const found = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) found.add(`${data.slice(at, at + 3)}`);
  return wanted.every((colour) => found.has(colour));
}"""


def test_columns_fit_at_every_width(page: Page, stack: Stack) -> None:
    """WCAG 1.4.4: 1440 px magnified twice are 720. What has no room is moved sideways, and the page is not."""
    client = stack.client()
    job = client.submit(["sleep", "600"], gpus=1, name="a-job-with-a-rather-long-name")
    node = client.nodes()[0].name
    result: list[str] = []
    client.create_endpoint("an-endpoint-with-a-rather-long-name", {"command": ["true"]})
    paths = (
        "/endpoints/",
        "/queue/",
        "/jobs/",
        f"/jobs/{job.id}/?tab=timeline",
        "/nodes/",
        f"/nodes/{node}/",
        "/tenants/",
        "/notifications/",
        "/tokens/",
    )
    for path in (*paths, "/fleet/?view=table", f"/fleet/?view=table&gpu={node}/0", "/usage/", "/cluster/health/"):
        # From narrow to wide: what is drawn by script is too wide for a frame when a screen becomes narrower.
        page.set_viewport_size({"width": _WIDTHS[0], "height": 800})
        page.goto(path)
        expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
        for width in _WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            result += page.evaluate(_CUT_OFF)
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                result.append(f"{path} is too wide at {width}")
    client.cancel(job.id)
    client.remove_endpoint("an-endpoint-with-a-rather-long-name")
    assert result == []


def test_cells_differ_with_forced_colours(chromium: Browser, stack: Stack) -> None:
    context = chromium.new_context(base_url=stack.url, forced_colors="active", viewport={"width": 1440, "height": 900})
    page = context.new_page()
    log_in(page, stack.password)
    client = stack.client()
    job = client.submit(["sleep", "600"], gpus=1)
    wait_for(lambda: client.get(job.id).state == "running", 60, "it to run")
    page.goto("/fleet/")
    page.wait_for_selector("[data-view=fleet].is-on canvas")
    busy, free = page.evaluate(_FILLS)
    assert busy != free
    drawn = [colour[4:-1].replace(" ", "") for colour in (busy, free)]
    page.wait_for_function(_HAS_THESE_COLOURS, arg=drawn)
    client.cancel(job.id)
    context.close()


def test_print_is_white(page: Page) -> None:
    page.goto("/usage/")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    ink = "getComputedStyle(document.body).color"
    visible = page.evaluate(ink)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(ink) != visible


def test_right_to_left_name_moves_nothing(page: Page, stack: Stack) -> None:
    """Else the number of GPUs that follows it stands before it, or what follows is turned about."""
    client = stack.client()
    names = ("\u05e9\u05dc\u05d5\u05dd", "\u202eevil")
    jobs = [client.submit(["sleep", "60"], gpus=1, name=name, not_before="2099-01-01T00:00:00Z") for name in names]
    page.goto("/mine/")
    for job in jobs:
        name = page.locator(f"a[href='/jobs/{job.id}/']").first
        assert name.evaluate("""(link) => {
          const next = document.createTreeWalker(link.closest("li"), NodeFilter.SHOW_TEXT);
          const texts = [];
          while (next.nextNode()) texts.push(next.currentNode);
          const number = texts.find((text) => text.data.includes("1 GPU"));
          const range = document.createRange();
          const at = number.data.indexOf("1 GPU");
          range.setStart(number, at);
          range.setEnd(number, at + 1);
          return range.getBoundingClientRect().left >= link.getBoundingClientRect().right;
        }"""), job.name  # fmt: skip
        client.cancel(job.id)


_AS_OF_MANY = """(list) => {
  const row = list.querySelector("li");
  row.querySelector(".how-many").textContent = "12759";
  row.querySelector(".muted").textContent = "138194 GPUs";
  const boxes = [...row.children].map((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getBoundingClientRect();
  });
  const line = boxes[1].height * 1.5;
  return boxes.slice(0, 3).every((box, at) => box.height < line && box.right < boxes[at + 1].left);
}"""


def test_numbers_of_a_large_queue_fit_their_columns(page: Page, stack: Stack) -> None:
    client = stack.client()
    job = client.submit(["true"], gpus=1, not_before="2099-01-01T00:00:00Z")
    for width in (641, 1180, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto("/overview/")
        assert page.locator("[data-view=overview-waiting] .list:has(a)").evaluate(_AS_OF_MANY), width
    client.cancel(job.id)
