"""Pages work under their content security policy (for each page: test_every_page.py), which stops injected scripts."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def test_injected_script_does_not_run(page: Page) -> None:
    """In a tab of its own, whose complaints are what is wanted."""
    tab = page.context.new_page()
    refused: list[str] = []
    tab.on(
        "console", lambda message: refused.append(message.text) if "Content Security Policy" in message.text else None
    )
    tab.goto("/jobs/")
    tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x id=bad onerror=\"window.ran = 1\">')")
    tab.locator("#bad").wait_for(state="attached")
    tab.wait_for_function("() => document.querySelector('#bad').complete")
    assert (tab.evaluate("window.ran === undefined"), len(refused)) == (True, 1)


def test_admin_works_under_content_policy(page: Page) -> None:
    """Alpine.js opens the menu of the person."""
    page.goto("/admin/tenants/tenant/")
    expect(page.get_by_role("link", name="default", exact=True).first).to_be_visible()
    assert page.evaluate("typeof window.Alpine") == "object"


def test_api_docs_render_under_content_policy(page: Page) -> None:
    page.goto("/api/v1/docs")
    expect(page.get_by_text("Submit a job").first).to_be_visible()
