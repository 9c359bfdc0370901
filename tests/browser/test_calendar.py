"""The calendar in Chromium: booking the next free slot, the bar of it, and its end; also on a phone and in the dark."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import log_in
from tests.browser.test_every_page import AXE, RUN_AXE
from tests.system.stack import Stack

pytestmark = pytest.mark.browser


def test_calendar_books_the_next_free_slot_and_ends_it(page: Page, stack: Stack) -> None:
    page.goto("/calendar/")
    page.get_by_label("GPUs", exact=True).fill("3")
    page.get_by_role("button", name="Find", exact=True).click()
    expect(page.get_by_text("Free from")).to_be_visible()
    page.get_by_label("Note", exact=True).fill("the deadline")
    page.get_by_role("button", name="Book it").click()
    bar = page.locator(".booking.is-idle", has_text="default 3 GPUs, idle")
    expect(bar).to_have_count(1)
    # The feed draws the bar anew when a job uses it.
    client = stack.client()
    [reservation] = list(client.reservations(state="active"))
    assert (reservation.gpus, reservation.note) == (3, "the deadline")
    job = client.submit(["sleep", "600"], gpus=1, reservation=reservation.id)
    expect(page.locator(".booking.is-used", has_text="default 3 GPUs, 1 used")).to_have_count(1)
    client.cancel(job.id)
    page.get_by_text("End…").click()
    page.get_by_role("button", name="End it now").click()
    expect(page.locator(".booking.is-past")).not_to_have_count(0)
    expect(page.get_by_role("button", name="End it now")).to_have_count(0)
    assert client.reservation(reservation.id).state == "released"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_calendar_fits_and_is_accessible(chromium: Browser, stack: Stack, scheme: str, width: int) -> None:
    client = stack.client()
    booked = client.reserve(8, for_seconds=7200, note="a long note " * 10)
    context = chromium.new_context(
        base_url=stack.url,
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    log_in(page, stack.password)
    page.goto("/calendar/?gpus=2&hours=1")
    expect(page.locator(".booking").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("main")).to_contain_text(re.compile("Free from"))
    page.evaluate(AXE.read_text())
    findings = page.evaluate(RUN_AXE)
    context.close()
    client.shorten_reservation(booked.id)
    assert findings == []


def test_fleet_finds_and_books_a_slot_above_its_map(page: Page, stack: Stack) -> None:
    """The map stays, with the view in its address."""
    client = stack.client()
    page.goto("/fleet/?fill=memory")
    page.get_by_label("GPUs", exact=True).fill("2")
    page.get_by_role("button", name="Find", exact=True).click()
    found = page.locator("#slot-found")
    expect(found).to_contain_text("Free from")
    found.get_by_label("Note", exact=True).fill("from the map")
    found.get_by_role("button", name="Book it").click()
    bar = page.locator("#bookings .booking.is-idle", has_text="default 2 GPUs, idle")
    expect(bar).to_have_count(1)
    assert page.url.endswith("/fleet/?fill=memory")
    [reservation] = list(client.reservations(state="active"))
    assert (reservation.gpus, reservation.note) == (2, "from the map")
    client.shorten_reservation(reservation.id)
    expect(page.locator("#bookings .booking.is-idle")).to_have_count(0)
    expect(page.locator("#bookings .booking.is-past")).not_to_have_count(0)
    page.get_by_role("link", name="Calendar", exact=True).last.click()
    page.wait_for_url("**/calendar/")


@pytest.fixture
def booked(stack: Stack) -> Iterator[list[int]]:
    """More reservations at one time than rows that the calendar above the map has room for."""
    client = stack.client()
    numbers = [client.reserve(1, for_seconds=7200, note="a long note " * 10).id for _ in range(12)]
    yield numbers
    for number in numbers:
        client.shorten_reservation(number)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_calendar_above_the_fleet_stays_low_and_is_accessible(
    chromium: Browser, stack: Stack, booked: list[int], scheme: str, width: int
) -> None:
    """It scrolls, also by keyboard, and the map keeps its place."""
    context = chromium.new_context(
        base_url=stack.url,
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    log_in(page, stack.password)
    page.goto("/fleet/")
    expect(page.locator("#bookings .booking.is-idle")).to_have_count(len(booked))
    expect(page.locator("[data-view=fleet].is-on canvas")).to_be_visible()
    lanes = page.locator(".bookings-lanes")
    low, whole = lanes.evaluate("lanes => [lanes.clientHeight, lanes.scrollHeight]")
    assert low < 160 < whole
    lanes.focus()
    page.keyboard.press("End")
    page.wait_for_function("() => document.querySelector('.bookings-lanes').scrollTop > 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(AXE.read_text())
    findings = page.evaluate(RUN_AXE)
    context.close()
    assert findings == []
