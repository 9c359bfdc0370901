"""Queue, Jobs, one job and Submit in a browser: each action, each tab, on the running system with its agents."""

import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from gpusched.client import Client
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.dependencies import After, Dependency
from gpusched.protocol.job_request import JobRequest
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

pytestmark = [pytest.mark.browser, pytest.mark.long]
TIMEOUT = 60_000
AXE = ROOT / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(v => v.impact === 'serious' || v.impact === 'critical').map(v => `${v.id}: ${v.nodes[0].html.slice(0, 200)} ${v.nodes[0].any.map(a => a.message)}`)"""
# Of a row of fixed height, what is below its edge.
CUT_OFF = """row => [...row.children].map(cell => [cell.dataset.label, cell.getBoundingClientRect().bottom])
  .filter(([, bottom]) => bottom > row.getBoundingClientRect().bottom + 1)"""


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    """Cancel jobs that a test has left."""
    with stack.client() as client:
        yield client
        for job in client.list(state="waiting,live"):
            client.cancel(job.id)


@pytest.fixture
def page(page: Page) -> Page:
    page.set_default_timeout(TIMEOUT)
    expect.set_options(timeout=TIMEOUT)
    return page


def test_long_queue_scrolls_filters_sorts_and_opens(page: Page, client: Client) -> None:
    """Only rows in sight are there; the address carries filter and order; a row opens to what would help."""
    jobs = [
        JobRequest(tenant="default", name=f"wait-{at}", command=["true"], gpu_count=1 + at % 3, not_before="2099-01-01T00:00:00Z")
        for at in range(90)
    ]  # fmt: skip
    client.submit_many(jobs)
    page.goto("/queue/")
    rows = page.locator("table.queue tr[data-href]")
    expect(page.locator("tr.group").first).to_contain_text("Waits on you or on a time · 90 jobs")
    assert rows.count() < 60
    # No GPU is missing to the first: it waits for a time, which its estimate knows.
    expect(rows.first.locator("[data-label=Estimate]")).to_have_text(re.compile(r"in \d+ d$"))
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(page.locator("td.name", has_text=re.compile("^wait-89$"))).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    page.keyboard.press("/")
    page.keyboard.type("wait-4")
    expect(page).to_have_url(re.compile(r"\?q=wait-4$"))
    expect(rows).to_have_count(11)
    page.get_by_role("button", name="Request").click()
    expect(page).to_have_url(re.compile(r"sort=-gpus"))
    expect(rows.first.locator("[data-label=Request]")).to_have_text("3 GPUs")
    rows.first.locator(".opener").click()
    expect(page.locator("tr.detail")).to_contain_text("Ahead of it")
    expect(page.locator("tr.detail .wait-bar")).to_be_visible()
    page.reload()
    expect(rows).to_have_count(11)


def test_rows_do_not_move_under_pointer(page: Page, client: Client) -> None:
    first = client.submit(["true"], gpus=1, name="first", not_before="2099-01-01T00:00:00Z")
    page.goto("/queue/")
    row = page.locator(f"tr[data-key='{first.id}']")
    row.hover()
    client.submit(["true"], gpus=1, name="urgent", priority=1500, not_before="2099-01-01T00:00:00Z")
    pill = page.locator("section .pill")
    expect(pill).to_have_text("1 new")
    expect(page.locator("td.name", has_text="urgent")).to_have_count(0)
    pill.click()
    page.mouse.move(5, 5)
    expect(page.locator("td.name").first).to_have_text("urgent")


def test_bulk_hold_can_be_undone(page: Page, client: Client) -> None:
    ids = [client.submit(["true"], gpus=1, name="several", not_before="2099-01-01T00:00:00Z").id for _ in range(3)]
    page.goto("/jobs/?name=several")
    for job_id in ids[:2]:
        page.locator(f"[data-select='{job_id}']").check()
    page.get_by_role("button", name="Hold").click()
    expect(page.locator(".toast")).to_contain_text("2 jobs are held")
    expect(page.locator(f"tr[data-key='{ids[0]}'] .state-held")).to_be_visible()
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(page.locator(f"tr[data-key='{ids[0]}'] .state-pending")).to_be_visible()
    expect(page.locator(f"tr[data-key='{ids[2]}'] .state-pending")).to_be_visible()


def test_cancel_of_waiting_jobs_can_be_undone(page: Page, client: Client) -> None:
    job = client.submit(["true"], gpus=1, name="regretted", not_before="2099-01-01T00:00:00Z")
    page.goto(f"/jobs/{job.id}/")
    page.get_by_role("button", name="Cancel").click()
    page.locator(".toast").get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Hold").click()
    expect(page.locator("[data-view=job-head] .state-held")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    page.locator(".toast").get_by_role("button", name="Do it now").click()
    expect(page.locator("[data-view=job-head] .state-cancelled")).to_be_visible()


def test_job_tabs_work(page: Page, client: Client) -> None:
    """Each has an address, is live where it is, and goes by the keyboard; the charts come with their library."""
    job = client.submit(["sh", "-c", "printf '\\033[31mred line\\033[0m\\n'; sleep 600"], gpus=2, name="tabs")
    wait_for(lambda: client.get(job.id).state == "running", 60, "it to run")
    page.goto(f"/jobs/{job.id}/")
    expect(page.locator("pre.log .ansi-fg-1")).to_have_text("red line")
    page.locator("[data-log-search]").fill("red")
    expect(page.locator(".log-note")).to_contain_text("1 line with")
    page.keyboard.press("Enter")
    expect(page.locator("pre.log .is-found")).to_have_text("red line")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.path().read_bytes() == b"\x1b[31mred line\x1b[0m\n"
    page.get_by_role("link", name="GPUs", exact=True).click()
    expect(page).to_have_url(re.compile(r"\?tab=gpus"))
    expect(page.locator(".gpu-row:not(.gpu-heads)")).to_have_count(2)
    expect(page.locator(".gpu-row [data-label='Memory GiB']")).to_have_count(2)
    expect(page.locator(".chart canvas, .chart .na").first).to_be_visible()
    page.get_by_role("link", name="Why here").focus()
    page.keyboard.press("Enter")
    expect(page.locator("tr.is-chosen")).to_contain_text("chosen")
    page.get_by_role("link", name="Timeline").click()
    expect(page.locator(".axis-running")).to_be_visible()
    page.get_by_role("link", name="Spec").click()
    expect(page.locator("#as-command")).to_contain_text("--gpus 2")
    page.go_back()
    expect(page.locator(".axis-running")).to_be_visible()
    page.locator("[data-palette]").click()
    expect(page.locator("dialog.palette")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Events").click()
    expect(page.locator("ol.timeline")).to_contain_text("submitted")
    page.reload()
    expect(page.locator("#tab-events")).to_have_attribute("aria-current", "page")
    page.get_by_text("Set a time limit…").click()
    page.locator("#extend-minutes").fill("90")
    page.get_by_role("button", name="Set the limit").click()
    expect(page.locator("[data-view=job-head]")).to_contain_text("1 h 30 min")
    page.get_by_text("Requeue…").click()
    page.get_by_role("button", name="Requeue the job").click()
    wait_for(lambda: client.get(job.id).attempt == 2, 60, "its second attempt")


@pytest.mark.timeout(300)
def test_request_is_confirmed_only_by_agent(page: Page, client: Client, stack: Stack) -> None:
    """A30, A37: at once requested; after half a minute the obstacle, also on a new page; confirmed when the
    agent has answered, and what was shown of the page stays shown."""
    job = client.submit(["sleep", "600"], gpus=1, name="asked", max_runtime_minutes=60)
    wait_for(lambda: client.get(job.id).state == "running", 60, "it to run")
    agent = stack.agents[0]
    page.goto(f"/jobs/{job.id}/?tab=spec")
    message = page.locator("#actions .confirmation")
    page.get_by_text("Extend…").click()
    page.locator("#extend-minutes").fill("90")
    page.get_by_role("button", name="Set the limit").click()
    expect(message).to_contain_text(re.compile("Time limit:.*confirmed by fleet0-"))
    expect(page.locator("[data-view=job-head]")).to_contain_text("1 h 30 min")
    page.get_by_role("button", name="Undo: back to 1 h").click()
    expect(page.locator("[data-view=job-head]")).not_to_contain_text("1 h 30 min")
    agent.send_signal(signal.SIGSTOP)
    try:
        page.locator("#actions").get_by_text("Cancel…").click()
        page.get_by_role("button", name="Cancel the job").click()
        expect(message).to_contain_text(re.compile("Cancel:.*requested"))
        expect(message).to_contain_text(re.compile(r"not confirmed yet node fleet0-\S+ silent for \d+ s"))
        page.reload()
        expect(message).to_contain_text(re.compile(r"not confirmed yet node fleet0-\S+ silent for \d+ s"))
    finally:
        agent.send_signal(signal.SIGCONT)
    expect(message).to_contain_text(re.compile("Cancel:.*confirmed by fleet0-"))
    assert page.url.endswith(f"/jobs/{job.id}/?tab=spec")
    wait_for(lambda: client.status().online_nodes == 2, 60, "both nodes to be back")


def test_array_elements_are_watched_retried_and_cancelled(page: Page, client: Client) -> None:
    """Live, without a reload; a started array with waiting elements stands in the queue, too."""
    script = ["sh", "-c", "echo this is $GPUSCHED_ARRAY_INDEX; test $GPUSCHED_ARRAY_INDEX != 0 || exit 3; sleep 600"]
    array = client.submit(script, gpus=1, name="sweep", array=ArrayRequest(count=60, max_parallel=2))
    page.goto(f"/jobs/{array.id}/")
    rows = page.locator("#elements tr[data-key]")
    expect(rows).to_have_count(50)
    expect(rows.nth(0).locator(".state-failed")).to_be_visible()
    expect(rows.nth(2).locator(".state-running")).to_be_visible()
    page.locator("#elements tr[data-key='2']").get_by_role("link", name="Log").click()
    expect(page.locator("#element-log pre.log")).to_contain_text("this is 2")
    rows.nth(5).get_by_role("checkbox").check()
    page.locator("#element-part").fill("8-9")
    page.locator("#elements-act").get_by_text("Cancel…").click()
    page.get_by_role("button", name="Cancel the elements").click()
    expect(page.locator(".toast").first).to_contain_text("3 elements are cancelled")
    expect(rows.nth(5).locator(".state-cancelled")).to_be_visible()
    page.get_by_role("button", name="Retry 1 failed").click()
    expect(page.locator(".toasts")).to_contain_text("1 element is to run again")
    page.locator("#element-state").select_option("cancelled")
    expect(page).to_have_url(re.compile("state=cancelled"))
    expect(rows).to_have_count(3)
    page.goto("/queue/")
    expect(page.locator(f"tr[data-key='{array.id}'] [data-label=Request]")).to_have_text(
        "54 \N{MULTIPLICATION SIGN} 1 GPU"
    )


def test_submit_preview_updates_while_typing(page: Page, client: Client) -> None:
    page.goto("/submit/")
    box = page.locator("#equivalent")
    page.locator("#id_command").fill("python train.py")
    expect(box).to_contain_text("It would start now on")
    page.locator("[name=gpu_count]").fill("8")
    expect(box.locator("#as-command")).to_contain_text("--gpus 8")
    page.locator("[name=gpu_count]").fill("64")
    expect(box).to_contain_text("It would be rejected")
    expect(page.locator("#id_command")).to_have_value("python train.py")
    page.locator("#id_command").fill("python 'x")
    page.locator("#id_name").focus()
    expect(page.locator("#e_command")).to_have_text("a quote is not closed: write it as in a shell")
    expect(page.locator("#id_command")).to_have_attribute("aria-invalid", "true")
    expect(box.locator("#as-command")).to_have_count(0)
    page.locator("#id_command").fill("python x")
    expect(page.locator("#e_command")).to_have_count(0)
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator("form .note.bad")).to_be_visible()
    page.locator("[name=gpu_count]").fill("2")
    expect(page.locator("form .note.bad")).to_have_count(0)
    # What is typed outlives leaving and coming back, and a reload.
    page.goto("/submit/")
    page.locator("#id_command").fill("python kept.py")
    page.locator("[name=gpu_count]").fill("2")
    page.goto("/queue/")
    page.go_back()
    expect(page.locator("#id_command")).to_have_value("python kept.py")
    expect(box.locator("#as-command")).to_contain_text("--gpus 2")
    page.reload()
    expect(page.locator("#id_command")).to_have_value("python kept.py")
    expect(box.locator("#as-command")).to_contain_text("python kept.py")
    page.goto("/submit/")
    expect(page.locator("#id_command")).to_have_value("")


@pytest.mark.parametrize(("theme", "width"), [("light", 390), ("dark", 1440)])
def test_pages_do_not_overflow_and_are_accessible(page: Page, client: Client, theme: str, width: int) -> None:
    running = client.submit(["sleep", "600"], gpus=1, name="x" * 60)
    client.submit(["true"], gpus=1, name="later", not_before="2099-01-01T00:00:00Z")
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 844})
    findings: list[str] = []
    tabs = [f"/jobs/{running.id}/?tab={tab}" for tab in ("log", "timeline", "gpus", "why", "spec", "events")]
    for path in ["/queue/", "/jobs/", "/jobs/?user=nobody&submitted_before=2099-01-31", "/submit/", *tabs]:
        page.goto(path)
        expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
        if path == "/queue/":
            row = page.locator("tr[data-href]").first
            for label in ("Owner", "Tenant", "Request", "Priority", "Why it waits"):
                expect(row.locator(f"td[data-label='{label}']")).to_be_visible()
            assert row.evaluate(CUT_OFF) == [], "user, request and reason are visible on a phone too"
        if page.evaluate("document.documentElement.scrollWidth") > width:
            findings.append(f"{path} is too wide")
        page.evaluate(AXE.read_text())
        findings += [f"{path} {finding}" for finding in page.evaluate(SERIOUS)]
    assert findings == []


def test_waiting_job_page_opens_on_its_reason(page: Page, client: Client) -> None:
    """The part that comes later must not inherit how the tabs are replaced: that removed it."""
    job = client.submit(["true"], gpus=1, not_before="2099-01-01T00:00:00Z")
    for address in (f"/jobs/{job.id}/", f"/jobs/{job.id}/?tab=why"):
        with page.expect_response(f"**/jobs/{job.id}/foreseen/"):
            page.goto(address)
        expect(page.locator("#tab dl.foreseen")).to_contain_text("When")


def test_open_reason_follows_the_job_and_its_cost_appears(page: Page, client: Client) -> None:
    """Also when the address names the tab, as after a click on it."""
    first = client.submit(["sleep", "600"], gpus=1)
    job = client.submit(["sleep", "600"], gpus=1, depends_on=[Dependency(job=first.id, kind=After.ANY)])
    page.goto(f"/jobs/{job.id}/?tab=why")
    expect(page.locator("#tab dl.foreseen")).to_contain_text("When")
    expect(page.locator(".job-cost")).to_be_hidden()
    client.cancel(first.id)
    expect(page.locator("#tab")).to_contain_text("It is running on")
    expect(page.locator("#tab [data-key=foreseen]")).to_have_count(0)
    expect(page.locator(".job-cost")).to_contain_text("GPU-hours")
