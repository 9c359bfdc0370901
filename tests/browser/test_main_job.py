"""The main job in a browser: log in, submit, watch it live, read its log, cancel another, edit a quota in admin."""

import re

import pytest
from playwright.sync_api import Page, expect

from gpusched.protocol.rest.cluster import Quota
from tests.system.stack import Stack
from tests.waiting import until_exists, wait_for

pytestmark = pytest.mark.browser


def submit(page: Page, command: str, **fields: str) -> int:
    page.goto("/submit/")
    page.locator("#id_command").fill(command)
    page.locator("[name=tenant]").select_option("default")  # other tests make tenants
    for label, value in fields.items():
        page.locator(f"[name={label}]").fill(value)
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/jobs/\d+/"))
    return int(page.url.rstrip("/").rsplit("/", 1)[-1])


def test_wrong_password_is_rejected(page: Page) -> None:
    page.context.clear_cookies()
    page.goto("/jobs/")
    expect(page).to_have_url(re.compile("/login/"))
    page.locator("#id_username").fill("admin")
    page.locator("#id_password").fill("guess")
    page.locator("main button[type=submit]").click()
    expect(page.get_by_role("alert")).to_be_visible()


def test_submit_watch_and_read_the_log(page: Page, stack: Stack) -> None:
    """Without a reload: pending or running, then completed; the log grows line by line."""
    may_end = stack.directory / "watched-may-end"
    submit(page, f'sh -c "echo line 1; sleep 1; echo line 2; {until_exists(may_end)}; echo the end"', name="watched")
    head = page.locator("[data-view=job-head]")
    expect(head.locator(".state-running")).to_be_visible()
    log = page.locator("pre.log")
    expect(log).to_contain_text("line 2")
    assert "the end" not in log.inner_text()
    may_end.touch()
    expect(log).to_contain_text("the end")
    expect(head.locator(".state-completed")).to_be_visible()
    expect(head).to_contain_text("exited with code 0")
    expect(page.locator("[data-freshness]")).to_have_class(re.compile("is-live"))


def test_running_job_is_cancelled(page: Page) -> None:
    """The other, untouched page shows it too."""
    job = submit(page, "sleep 600", name="to-cancel")
    other = page.context.new_page()
    other.goto("/jobs/")
    row = other.locator(f"tr[data-key='{job}']")
    expect(row.locator(".state-running")).to_be_visible()
    expect(page.locator("[data-view=job-head] .state-running")).to_be_visible()
    page.get_by_text("Cancel…").click()
    page.get_by_role("button", name=re.compile("Cancel")).last.click()
    expect(page.locator("[data-view=job-head] .state-cancelled")).to_be_visible()
    expect(row.locator(".state-cancelled")).to_be_visible()


def test_impossible_job_is_reported_beside_form(page: Page) -> None:
    page.goto("/submit/")
    page.locator("#id_command").fill("python train.py")
    page.locator("[name=gpu_count]").fill("64")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_text("the largest possible is").first).to_be_visible()
    expect(page.locator("#id_command")).to_have_value("python train.py")


def test_edit_a_quota_in_admin(page: Page, stack: Stack) -> None:
    """Kept with who changed it, and at work at once: a job of the tenant waits and says so."""
    page.goto("/tenants/default/")
    page.get_by_role("link", name="In the admin").click()
    page.wait_for_url(re.compile("/admin/tenants/tenant/"))
    page.locator("[name=quota-0-max_concurrent_jobs]").fill("1")
    page.locator("[name=_continue]").click()
    expect(page.locator(".quota-history")).to_contain_text("max_concurrent_jobs=1")
    expect(page.locator(".quota-history")).to_contain_text("admin")
    client = stack.client()
    try:
        first = client.submit(["sleep", "600"], gpus=1)
        wait_for(lambda: client.get(first.id).state == "running", 20, "the first to run")
        waits = submit(page, "sleep 600")
        expect(page.locator("[data-view=job-head] .reason")).to_contain_text("quota exceeded for tenant default")
        page.goto("/queue/")
        expect(page.locator(f"tr[data-key='{waits}']")).to_contain_text("quota exceeded for tenant default")
        client.cancel(first.id)
        client.cancel(waits)
    finally:
        client.set_quota("default", Quota(version=client.quota("default").version))


def test_page_equals_new_page_after_interruption(page: Page, stack: Stack) -> None:
    """A52: the web server is killed under an open page; jobs go on, and the page catches up by itself."""
    page.goto("/jobs/")
    chip = page.locator("[data-freshness]")
    expect(chip).to_have_class(re.compile("is-live"))
    may_end = stack.directory / "meanwhile-may-end"
    job = stack.client().submit(["sh", "-c", until_exists(may_end)], gpus=1, name="meanwhile")
    expect(page.locator(f"tr[data-key='{job.id}'] .state-running")).to_be_visible()
    assert stack.kill("daphne")
    may_end.touch()
    expect(chip).to_have_class(re.compile("is-offline"))
    wait_for(lambda: stack.is_ready(), 30, "the web server to be back")
    expect(chip).to_have_class(re.compile("is-live"), timeout=20_000)
    expect(page.locator(f"tr[data-key='{job.id}'] .state-completed")).to_be_visible(timeout=20_000)
    current = page.context.new_page()
    current.goto("/jobs/")
    expect(current.locator("[data-freshness]")).to_have_class(re.compile("is-live"))
    keys = "rows => rows.map(row => [row.dataset.key, row.querySelector('.state')?.className])"

    def are_equal() -> bool:
        loaded = current.locator("tr[data-key]").evaluate_all(keys)
        # What was there before stays below: a page is loaded with the latest 100.
        return bool(loaded) and page.locator("tr[data-key]").evaluate_all(keys)[: len(loaded)] == loaded

    wait_for(are_equal, 20, "both pages to show the same")
