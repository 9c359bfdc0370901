"""The notices menu: job results pop up, are counted, and are read once it was opened."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.system.stack import Stack

pytestmark = pytest.mark.browser


def test_failed_job_is_notified_and_marked_read(page: Page, stack: Stack) -> None:
    page.goto("/nodes/")
    expect(page.locator("[data-freshness]")).to_have_class(re.compile("is-live"), timeout=60_000)
    bell = page.locator(".bell")
    previous = page.locator(".bell-list li").count()
    job = stack.client().submit(["sh", "-c", "exit 3"], gpus=1, name="to-fail")
    expect(page.locator(".toast", has_text="to-fail")).to_contain_text(
        f"job {job.id} to-fail: exited with code 3", timeout=60_000
    )
    expect(page.locator("[data-unread]")).to_have_text(re.compile(r"\d"))
    bell.locator("summary").click()
    line = bell.locator("li.is-unread").first
    expect(line).to_contain_text("exited with code 3")
    assert bell.locator("li").count() > previous
    expect(page.locator("[data-unread]")).to_be_hidden(timeout=60_000)
    other = page.context.new_page()
    other.goto("/jobs/")
    expect(other.locator("[data-freshness]")).to_have_class(re.compile("is-live"), timeout=60_000)
    expect(other.locator(".bell-list li").first).to_be_attached(timeout=60_000)
    expect(other.locator("[data-unread]")).to_be_hidden()
    line.get_by_role("link").click()
    page.wait_for_url(f"**/jobs/{job.id}/")
