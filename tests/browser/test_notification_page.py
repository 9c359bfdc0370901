"""The page of notifications in Chromium: create a webhook, read its secret, see why a test was not sent; light, dark and
on a phone."""

import re
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import log_in
from tests.browser.test_every_page import look_at
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
PATH = "/notifications/"


@pytest.fixture
def routes(stack: Stack) -> Iterator[None]:
    """A route with a long name and many kinds, and a webhook whose test failed, and which hears of a failed job."""
    client = stack.client()
    kinds = ["job_ended", "job_failed", "job_about_to_end", "job_preempted", "budget", "incident"]
    target = "mailtos://kim:pw@smtp.invalid?to=a-rather-long-name@example.com"
    options = {"quiet_from": "22:00", "quiet_until": "07:00", "digest_minutes": 60}
    route = client.create_notification_route("a-route-with-a-rather-long-name", target, kinds, **options)  # type: ignore[arg-type]
    hook = client.create_webhook("ci", "http://hooks.invalid/x", ["job_failed"], tenant="default")
    tested = client.try_webhook(hook.id)
    wait_for(lambda: client.delivery(tested.id).error, 60, "the failure of the test")
    client.submit(["false"], gpus=0)
    wait_for(lambda: any(sent.kind == "job_failed" for sent in client.deliveries()), 60, "the failure of the job")
    yield
    client.delete_notification_route(route.id)
    client.delete_webhook(hook.id)


def test_webhook_is_created_tested_and_removed(page: Page, stack: Stack) -> None:
    page.goto(PATH)
    page.get_by_label("Send by").select_option("webhook")
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Address").fill("http://hooks.invalid/secret-path")
    page.get_by_label("job completed or was cancelled").check()
    page.get_by_role("button", name="Create route").click()
    expect(page.locator("pre.secret")).to_have_text(re.compile("^whsec_"))
    row = page.locator("section", has_text="Routes and webhooks").get_by_role("row", name="nightly")
    expect(row).to_contain_text("http://hooks.invalid/…")
    page.get_by_role("button", name="Test nightly").click()
    expect(page.locator(".flash")).to_contain_text("A test message to nightly is on its way")

    # The page shows the result without a reload.
    expect(page.locator("section[aria-labelledby=deliveries]")).to_contain_text("no connection")
    expect(row).to_contain_text("failing")
    page.get_by_label("More for nightly").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator(".flash")).to_contain_text("Nightly is removed.")


def test_refusal_stands_at_its_field(page: Page) -> None:
    page.goto(PATH)
    page.get_by_label("Name").fill("local")
    page.get_by_label("Address").fill("ntfy://127.0.0.1/topic")
    page.get_by_role("button", name="Create route").click()
    expect(page.get_by_label("Address")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#e_target")).to_contain_text("is not a public address")


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 390), ("dark", 390)])
def test_page_is_accessible_and_fits(
    chromium: Browser, stack: Stack, routes: None, theme: Literal["light", "dark"], width: int
) -> None:
    context = chromium.new_context(
        base_url=stack.url, color_scheme=theme, viewport={"width": width, "height": 900}, has_touch=width < 500
    )
    page = context.new_page()
    log_in(page, stack.password)
    page.goto(PATH)
    assert look_at(page, "notifications", width) == []
    page.get_by_label("More for ci").click()
    assert look_at(page, "notifications", width) == []
    context.close()
