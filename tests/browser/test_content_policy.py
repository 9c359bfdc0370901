"""Every page does its work under its content security policy; what the browser refuses fails the test (conftest.py)."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("path", ["/", "/fleet/", "/queue/", "/jobs/", "/nodes/", "/tenants/", "/submit/", "/tokens/"])
def test_pages_need_no_script_but_files(page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator("#main")).to_be_visible()


def test_what_is_injected_into_a_page_does_not_run(page: Page) -> None:
    """In a tab of its own, whose complaints are what is wanted."""
    tab = page.context.new_page()
    refused: list[str] = []
    tab.on("console", lambda said: refused.append(said.text) if "Content Security Policy" in said.text else None)
    tab.goto("/jobs/")
    tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x id=bad onerror=\"window.ran = 1\">')")
    tab.locator("#bad").wait_for(state="attached")
    tab.wait_for_function("document.querySelector('#bad').complete")
    assert (tab.evaluate("window.ran === undefined"), len(refused)) == (True, 1)


def test_the_admin_works(page: Page) -> None:
    """Alpine.js opens the menu of the person."""
    page.goto("/admin/tenants/tenant/")
    expect(page.get_by_role("link", name="default", exact=True).first).to_be_visible()
    assert page.evaluate("typeof window.Alpine") == "object"


def test_the_documentation_of_the_api_is_drawn(page: Page) -> None:
    page.goto("/api/v1/docs")
    expect(page.get_by_text("Submit a job").first).to_be_visible()
