"""On a phone: tables without heads sort all the same."""

import re

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from benchmarks.stack import Stack

pytestmark = pytest.mark.browser
WIDE = ViewportSize(width=1440, height=900)
PHONE = ViewportSize(width=390, height=844)


def test_tables_sort_by_a_list_where_they_have_no_heads(page: Page, stack: Stack) -> None:
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


def test_the_fleets_table_does_so_too(page: Page) -> None:
    page.set_viewport_size(PHONE)
    page.goto("/fleet/?view=table")
    first = page.locator("tbody tr[data-key] td[data-label=GPU]").first
    expect(first).to_have_text("0")
    page.get_by_label("Sort by").select_option("GPU, descending")
    expect(first).to_have_text("7")
    expect(page).to_have_url(re.compile(r"sort=-gpu$"))
