"""Nodes, joining, tenants, usage, health and My work in a browser: changes appear without a reload."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from gpusched.protocol.rest.cluster import Quota
from tests.system.stack import Stack
from tests.waiting import until_exists, wait_for

pytestmark = pytest.mark.browser


@pytest.fixture
def node(stack: Stack) -> Iterator[str]:
    """A node that takes jobs, before and afterwards."""
    name = stack.client().nodes()[0].name
    yield name
    stack.client().uncordon(name)


def test_cordon_is_requested_confirmed_and_undone(page: Page, node: str) -> None:
    """A second, untouched page follows."""
    other = page.context.new_page()
    other.goto(f"/nodes/{node}/")
    page.goto("/nodes/")
    page.locator("section[data-view=nodes]").get_by_role("link", name=node, exact=True).click()
    page.wait_for_url(re.compile(f"/nodes/{node}/"))
    page.get_by_text("Cordon…").click()
    page.locator("input[name=note]").first.fill("new fan")
    page.get_by_role("button", name="Cordon", exact=True).click()
    for entry in (page, other):
        expect(entry.locator("#node-now > .card > .confirmation")).to_contain_text("Cordon: ✓ confirmed")
        expect(entry.locator("#node-now .headline")).to_contain_text("new fan")
        expect(entry.locator(".troubles")).to_contain_text("Uncordon it.")
    page.locator(".troubles").get_by_role("button", name="Uncordon").click()
    for entry in (page, other):
        expect(entry.locator("#node-now .headline")).to_contain_text("Accepts jobs.")
        expect(entry.locator(".troubles")).to_have_count(0)
    expect(page.locator("#node-history")).to_contain_text("new fan")


def test_note_survives_another_problem_of_the_node(page: Page, stack: Stack, node: str) -> None:
    """A problem adds a section above the GPUs; the open question and its note stay."""
    page.goto(f"/nodes/{node}/")
    row = page.locator("#node-now table.rows tbody tr").nth(1)
    row.get_by_text("Quarantine…").click()
    note = row.locator("input[name=note]")
    note.press_sequentially("smells of")
    stack.client().cordon(node)
    expect(page.locator(".troubles")).to_contain_text("Uncordon it.")
    expect(note).to_be_focused()
    expect(note).to_have_value("smells of")


def test_gpu_is_quarantined_cleared_and_its_readings_drawn(page: Page, stack: Stack, node: str) -> None:
    page.goto(f"/nodes/{node}/?span=1h")
    row = page.locator("#node-now table.rows tbody tr").first
    row.get_by_text("Quarantine…").click()
    row.locator("input[name=note]").fill("smells")
    row.get_by_role("button", name="Quarantine", exact=True).click()
    expect(page.locator(".troubles .state-quarantined")).to_be_visible()
    page.locator(".troubles").get_by_role("button", name="Clear GPU").click()
    expect(page.locator(".troubles")).to_have_count(0)
    expect(page.locator(".chart-grid figure")).to_have_count(8)
    page.locator("[data-metric]").select_option("temperature")
    assert "show=temperature" in page.url
    job = stack.client().submit(["sleep", "600"], gpus=1)
    try:
        wait_for(lambda: stack.client().get(job.id).state == "running", 30, "the job to run")
        placed = stack.client().get(job.id).nodes[0]
        page.goto(f"/nodes/{placed}/")
        expect(page.locator(f".lane-span.is-live[title^='job {job.id} ']")).to_be_visible()
    finally:
        stack.client().cancel(job.id)


def test_fleet_panel_acts_on_gpu_job_and_node(page: Page, stack: Stack, node: str) -> None:
    """Nothing is lost of a question that is open while readings come in; the map itself says that it is so."""
    job = stack.client().submit(["sleep", "600"], gpus=1)
    wait_for(lambda: stack.client().get(job.id).state == "running", 30, "the job to run")
    placed = stack.client().get(job.id).nodes[0]
    page.goto(f"/fleet/?job={job.id}&gpu={placed}/0")
    panel = page.locator("[data-fleet-panel]")
    panel.get_by_text("Quarantine…").click()
    panel.locator("#do-gpu input[name=note]").fill("smells")
    page.wait_for_timeout(2500)
    panel.get_by_role("button", name="Quarantine", exact=True).click()
    expect(page.locator(".toast")).to_contain_text("takes no new jobs")
    expect(panel.locator(".panel-facts .state-quarantined")).to_contain_text("smells")
    panel.get_by_role("button", name="Clear").click()
    expect(panel.locator(".panel-facts .state-quarantined")).to_have_count(0)
    panel.get_by_text("Drain…").click()
    panel.locator("#do-node details[open]").get_by_role("button", name="Drain", exact=True).click()
    expect(panel.locator(".confirmation", has_text="Drain:")).to_contain_text("confirmed, draining")
    panel.get_by_text("Cancel…").click()
    panel.get_by_role("button", name="Cancel the job").click()
    expect(panel.locator(".confirmation", has_text="Drain:")).to_contain_text("confirmed, drained")
    expect(panel.get_by_text("Cancel…")).to_have_count(0)
    panel.get_by_role("button", name="Uncordon").click()
    expect(panel.get_by_text("Cordon…")).to_be_visible()
    assert page.evaluate("document.querySelector('.panel').scrollWidth <= document.querySelector('.panel').clientWidth")
    # On a phone the panel is below the map: the page goes there, and Back goes back.
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/fleet/")
    cells = page.locator("section[data-view=fleet] canvas")
    expect(cells).to_be_visible()
    cells.click(position={"x": 40, "y": 70})
    expect(panel.locator(".panel-head")).to_be_in_viewport(ratio=1)
    page.go_back()
    expect(panel.locator(".panel-head")).to_have_count(0)


def test_join_page_shows_arriving_machine(page: Page, stack: Stack) -> None:
    page.goto("/join/")
    page.get_by_role("button", name="Create a join token").click()
    expect(page.locator(".arrivals")).to_contain_text("Waiting for a machine")
    command = page.locator("pre", has_text="gpusched-agent join").inner_text()
    agent = stack.agent("--pretend", "1:NVIDIA L4:24576:1:8:32768", name="newcomer", token=command.split()[-1])
    try:
        expect(page.locator(".light.is-on")).to_be_visible(timeout=60_000)
        expect(page.locator(".arrivals")).to_contain_text("is online: 1 GPU")
    finally:
        agent.terminate()
        agent.wait(20)
        stack.agents.remove(agent)


def test_quota_edit_shows_effect(page: Page, stack: Stack) -> None:
    client = stack.client()
    job = client.submit(["sleep", "600"], gpus=2)
    try:
        wait_for(lambda: client.get(job.id).state == "running", 30, "the job to run")
        page.goto("/tenants/")
        page.locator("#tenants").get_by_role("link", name="default", exact=True).click()
        page.get_by_role("link", name="Edit quota").click()
        page.locator("[name=max_gpus]").fill("1")
        expect(page.locator("#effect")).to_contain_text("more than the limit of 1")
        page.get_by_text("Apply it anyway").click()
        page.get_by_role("button", name="Apply", exact=True).click()
        expect(page.locator(".flash")).to_contain_text("The quota is changed")
        expect(page.locator("#tenant-now .bullet-value").first).to_contain_text("limit 1")
        assert client.get(job.id).state == "running"
        # The page shows the edit of another admin without a reload.
        client.set_quota("default", Quota(max_gpus=7, version=client.quota("default").version))
        expect(page.get_by_label("History of edits").get_by_role("row").nth(1)).to_contain_text("1 → 7")
    finally:
        client.cancel(job.id)
        client.set_quota("default", Quota(version=client.quota("default").version))


def test_filter_hides_a_tenant_that_comes_later(page: Page, stack: Stack) -> None:
    page.goto("/tenants/?q=default")
    expect(page.locator("#tenants.is-on tr[id=default]")).to_be_visible()
    stack.client().create_tenant("unfiltered")
    row = page.wait_for_selector("#unfiltered", state="attached")
    assert row is not None and not row.is_visible()
    page.locator("[data-filter]").fill("")
    expect(page.locator("#unfiltered")).to_be_visible()


def test_tenant_bars_stay_in_card_on_phone(page: Page) -> None:
    page.set_viewport_size({"width": 320, "height": 640})
    page.goto("/tenants/")
    beyond = "all => all.map(e => e.closest('.card').getBoundingClientRect().right - e.getBoundingClientRect().right)"
    assert min(page.locator(".bullets .bar").evaluate_all(beyond)) > 8


@pytest.mark.parametrize("width", [390, 360, 320])
def test_usage_period_wraps_on_phone(page: Page, stack: Stack, width: int) -> None:
    if len(stack.client().tenants()) == 1:
        stack.client().create_tenant("second-of-two")
    page.set_viewport_size({"width": width, "height": 844})
    page.goto("/usage/")
    fields = page.locator(".usage-bar form :is(input:not([type=hidden]), select, button)")
    tops = fields.evaluate_all("all => all.map(e => Math.round(e.getBoundingClientRect().top))")
    assert len(tops) == 4
    assert len(set(tops)) <= 2
    # As wide as it wants to be where there is room, a day is whole.
    lacks = """all => all.map(e => { const has = e.offsetWidth; e.style.cssText = "width: max-content; justify-self: start";
        const wants = e.offsetWidth; e.style.cssText = ""; return wants - has; })"""
    assert max(page.locator(".usage-bar input[type=date]").evaluate_all(lacks)) <= 0
    rights = fields.evaluate_all("all => all.map(e => e.getBoundingClientRect().right)")
    assert max(rights) <= width - 12


def test_my_work_follows_jobs_live(page: Page, stack: Stack) -> None:
    page.goto("/mine/")
    may_end = stack.directory / "own-work-may-end"
    job = stack.client().submit(["sh", "-c", until_exists(may_end)], gpus=1, name="own-work")
    expect(page.locator(f"#mine section:has(#running) #job-{job.id}")).to_be_visible()
    may_end.touch()
    expect(page.locator(f"#mine section:has(#recent) #job-{job.id}")).to_be_visible(timeout=30_000)


def test_usage_chart_and_csv(page: Page, stack: Stack) -> None:
    stack.client().wait(stack.client().submit(["sleep", "1"], gpus=1).id, timeout=60)
    page.goto("/usage/?by=user")
    expect(page.locator("[data-chart=usage] canvas")).to_be_visible()
    expect(page.locator("tr[data-key=admin]")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CSV").click()
    assert download.value.suggested_filename.startswith("usage-by-user-")
