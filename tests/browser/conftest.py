"""The real page of a running system in Chromium."""

from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, expect

from tests.system.chromium import launch, path
from tests.system.stack import Stack

# Milliseconds: a machine that runs two of these at once, or is busy with something else, takes its time.
TIMEOUT = 60_000
expect.set_options(timeout=TIMEOUT)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Of each file its own: what the tests of one leave behind would occupy the GPUs of the next."""
    with Stack() as running:
        running.fleet(2)
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if path() is None:
        pytest.skip("Chromium is not installed")
    with launch() as browser:
        yield browser


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Print what the page shows when its test fails: the failed expectation names only one element."""
    report = yield
    page = getattr(item, "funcargs", {}).get("page")
    if report.when == "call" and report.failed and page is not None:
        page.set_default_timeout(2_000)
        with suppress(Error):
            report.sections.append(("Page", f"{page.url}\n{page.locator('body').inner_text()[:20_000]}"))
    return report


@pytest.fixture
def page(chromium: Browser, stack: Stack) -> Iterator[Page]:
    """A page on which the admin is logged in. What the browser complains about fails the test."""
    context = chromium.new_context(base_url=stack.url, viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if "Content Security Policy" in message.text else None,
    )
    log_in(page, stack.password)
    yield page
    context.close()
    assert complaints == []


def log_in(page: Page, word: str) -> None:
    page.goto("/login/")
    page.locator("#id_username").fill("admin")
    page.locator("#id_password").fill(word)
    page.locator("main button[type=submit]").click()
    page.wait_for_url("**/")
