"""Phone layout: sorting without heads, and long names."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.test_every_page import look_at
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
WIDE = ViewportSize(width=1440, height=900)
PHONE = ViewportSize(width=390, height=844)
# Of what says the name and nothing else, the most lines that are to be seen.
LINES = """name => Math.max(...[...document.querySelectorAll('main :not(td)')].filter(part => part.textContent === name)
  .map(part => Math.round(part.getBoundingClientRect().height / parseFloat(getComputedStyle(part).lineHeight))))"""
CUT_OFF = """() => [...document.querySelectorAll('main td')]
  .filter(cell => cell.getBoundingClientRect().right > cell.closest('.card').getBoundingClientRect().right + 1)
  .map(cell => cell.dataset.label)"""


def test_phone_tables_sort_by_list(page: Page, stack: Stack) -> None:
    client = stack.client()
    jobs = [
        client.submit(["true"], gpus=gpus, name=f"asks-{gpus}", not_before="2099-01-01T00:00:00Z") for gpus in (1, 3, 2)
    ]
    page.set_viewport_size(PHONE)
    page.goto("/queue/?q=asks-")
    names, choice = page.locator("table.queue td.name"), page.get_by_label("Sort by")
    expect(names).to_have_text(["asks-1", "asks-3", "asks-2"])
    choice.select_option("Request, descending")
    expect(page).to_have_url(re.compile(r"\?q=asks-&sort=-gpus$"))
    expect(names).to_have_text(["asks-3", "asks-2", "asks-1"])
    page.reload()
    expect(choice).to_have_value("-gpus")
    head = page.get_by_role("button", name="Request")
    expect(head).to_have_count(0)
    page.set_viewport_size(WIDE)
    expect(head).to_be_visible()
    expect(choice).to_be_hidden()
    for job in jobs:
        client.cancel(job.id)


def test_phone_fleet_table_sorts_by_list(page: Page) -> None:
    page.set_viewport_size(PHONE)
    page.goto("/fleet/?view=table")
    first = page.locator("tbody tr[data-key] td[data-label=GPU]").first
    expect(first).to_have_text("0")
    page.get_by_label("Sort by").select_option("GPU, descending")
    expect(first).to_have_text("7")
    expect(page).to_have_url(re.compile(r"sort=-gpu$"))


@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide", "phone"])
def test_long_name_wraps_and_title_is_complete(page: Page, stack: Stack, screen: ViewportSize) -> None:
    client = stack.client()
    name = ("train " + "x" * 80 + "y" * 80 + " on all of it" * 4)[:200]
    allocated = client.submit(["true"], gpus=1, name=name, not_before="2099-01-01T00:00:00Z")
    runs = client.submit(["sleep", "600"], gpus=1, name=name)
    wait_for(lambda: client.get(runs.id).state == "running", 60, "it to run")
    page.set_viewport_size(screen)
    node = (client.get(runs.id).nodes or [""])[0]
    for path in ("/queue/", "/jobs/", "/mine/", f"/nodes/{node}/"):
        page.goto(path)
        expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
        first = page.get_by_title(name).first
        expect(first).to_be_visible()
        assert page.evaluate(LINES, name) <= 2, path
        assert page.evaluate("document.documentElement.scrollWidth") <= screen["width"], path
        assert page.evaluate(CUT_OFF) == [], path
    for job in (allocated, runs):
        client.cancel(job.id)


def test_attention_nodes_wrap_like_text(page: Page, stack: Stack) -> None:
    """One below the other they have no room of their own to be pressed."""
    client = stack.client()
    nodes = [node.name for node in client.nodes() if node.state == "online"]
    for node in nodes:
        client.cordon(node)
    try:
        for width in (320, 360, 390, 1440):
            page.set_viewport_size({"width": width, "height": 844})
            page.goto("/overview/")
            for node in nodes:
                expect(page.locator(".is-on .places").get_by_role("link", name=node, exact=True).first).to_be_visible()
            assert look_at(page, "overview", width) == []
    finally:
        for node in nodes:
            client.uncordon(node)


def test_long_label_of_a_node_wraps(page: Page, stack: Stack) -> None:
    client = stack.client()
    node = client.nodes()[0].name
    label = "example.com/" + "l" * 50
    client.label_node(node, {label: "v" * 60})
    page.set_viewport_size(PHONE)
    page.goto(f"/nodes/{node}/")
    expect(page.locator("#node-now")).to_contain_text(label)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    client.label_node(node, {label: None})


@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide", "phone"])
def test_note_with_long_address_hides_no_column(page: Page, stack: Stack, screen: ViewportSize) -> None:
    client = stack.client()
    device, note = client.devices()[0], "https://example.org/" + "x" * 120
    client.quarantine(device.id, note=note)
    page.set_viewport_size(screen)
    page.goto(f"/nodes/{device.node}/")
    page.get_by_text("Cordon…").click()
    page.locator("#node-actions details[open] input[name=note]").fill(note)
    page.get_by_role("button", name="Cordon", exact=True).click()
    expect(page.locator("#node-now .headline")).to_contain_text(note)
    for path in (f"/nodes/{device.node}/", "/nodes/", "/fleet/?view=table"):
        page.goto(path)
        expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
        expect(page.locator("main table").first).to_contain_text(note)
        assert page.evaluate(CUT_OFF) == [], path
    client.clear(device.id)
    client.uncordon(device.node)


@pytest.mark.parametrize("screen", [WIDE, PHONE], ids=["wide", "phone"])
def test_reservation_with_long_note_can_be_ended(page: Page, stack: Stack, screen: ViewportSize) -> None:
    client = stack.client()
    start = datetime.now(UTC) + timedelta(days=30)
    booked = client.reserve(1, start=start, for_seconds=3600, note="https://example.org/" + "x" * 150)
    page.set_viewport_size(screen)
    page.goto("/calendar/")
    row = page.locator(f"tr[data-key=reservation-{booked.id}]")
    row.get_by_text("Cancel…").click()
    panel = row.locator(".confirm-panel").bounding_box()
    assert panel is not None
    assert panel["x"] + panel["width"] <= screen["width"]
    row.get_by_role("button", name="Cancel it").click()
    expect(row).to_have_count(0)


def test_my_work_shows_the_request_after_a_long_name(page: Page, stack: Stack) -> None:
    """On a screen as low as a laptop's."""
    client = stack.client()
    job = client.submit(["true"], gpus=1, name="train-" * 30, not_before="2099-01-01T00:00:00Z")
    page.set_viewport_size(WIDE)
    page.goto("/mine/")
    text = page.locator(f"#job-{job.id} .grow")
    expect(text).to_contain_text("1 GPU")
    assert text.evaluate("each => each.scrollWidth <= each.clientWidth")
    client.cancel(job.id)
