"""The pages of endpoints in Chromium, with a replica that is a real job: the form that tries one, live load, drain and
limits, keys, both themes and a phone."""

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal, cast

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import TIMEOUT, log_in
from tests.browser.test_every_page import look_at
from tests.system.stack import ROOT, Stack, free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
_SERVE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from gpusched.serve import serve

def measure(texts):
    if "fail" in texts:
        raise ValueError("no such text")
    return [{{"length": len(text), "vector": [1, 2, 3]}} for text in texts]

serve(measure)
"""
PATH = "/endpoints/default/measure/"


@pytest.fixture(scope="module")
def endpoint(stack: Stack) -> Iterator[str]:
    client = stack.client()
    template: dict[str, Any] = {"command": [sys.executable, "-c", _SERVE], "gpu_count": 1}
    client.create_endpoint("measure", template, type="embedding", max_batch=4, timeout_seconds=120)
    yield "measure"
    client.remove_endpoint("measure", with_queue=True)


@pytest.fixture
def warm(stack: Stack, endpoint: str) -> None:
    client = stack.client()
    task = client.submit_task(endpoint, "warm")
    client.wait_task(task.id, 120)
    wait_for(lambda: [e.warm for e in client.endpoints() if e.name == endpoint] == [1], 60, "a warm replica")


def send(page: Page, text: str) -> None:
    """Fill and send the form once the page's script runs."""
    expect(page.locator("[data-view=endpoint-head]")).to_have_class(re.compile("is-on"))
    page.locator("form[data-try] textarea").fill(text)
    page.get_by_role("button", name="Send").click()


def test_form_shows_the_result_of_a_real_replica(page: Page, endpoint: str) -> None:
    page.goto(PATH)
    expect(page.locator("[data-view=endpoint-batches]")).to_contain_text("No batch ended lately.")
    send(page, '"four"')
    result = page.locator("[data-try-result]")
    expect(result.get_by_role("region", name="Result")).to_contain_text('"length": 4', timeout=2 * TIMEOUT)
    expect(result).to_contain_text("in a batch of 1, flushed because of")
    expect(result).to_contain_text("from submit to result")
    replica = page.locator("[data-view=endpoint-replicas] tbody tr")
    expect(replica).to_contain_text("warm")
    expect(replica.locator("a")).to_have_attribute("href", "/jobs/" + replica.locator("a").inner_text() + "/")
    expect(page.locator("[data-view=endpoint-batches] tbody tr")).to_have_count(1)
    expect(page.locator("[data-view=endpoint-costs] tbody tr")).to_contain_text("admin")
    expect(page.locator("[data-view=endpoint-head]")).to_contain_text("1 completed")


def test_form_shows_errors_as_they_are(page: Page, warm: None) -> None:
    page.goto(PATH)
    alert = page.locator("[data-try-result] [role=alert]")
    send(page, "{oops")
    expect(alert).to_contain_text("The input is not JSON")
    send(page, '"' + "x" * (257 << 10) + '"')
    expect(alert).to_contain_text("input: has more than 256 KiB")
    send(page, '"fail"')
    expect(alert).to_contain_text("is failed: ")
    expect(alert).to_contain_text("no such text")


def test_form_sends_nothing_before_its_script_runs(page: Page, endpoint: str) -> None:
    page.route("**/endpoints.js", lambda route: route.abort())
    page.goto(PATH)
    page.locator("form[data-try] textarea").fill('"kept"')
    page.get_by_role("button", name="Send").click()
    expect(page).to_have_url(re.compile(PATH + "$"))
    expect(page.locator("form[data-try] textarea")).to_have_value('"kept"')


@pytest.fixture(scope="module")
def chat(stack: Stack) -> Iterator[str]:
    client = stack.client()
    port = free_port()
    template = {"command": [sys.executable, str(ROOT / "tests/serving/openai_replica.py"), str(port)], "gpu_count": 1}
    client.create_endpoint("talk", template, type="llm", protocol="openai", port=port, timeout_seconds=120)
    yield "talk"
    client.remove_endpoint("talk", with_queue=True)


def test_prompt_shows_the_stream_of_a_real_replica(page: Page, chat: str) -> None:
    page.goto(f"/endpoints/default/{chat}/")
    send(page, "count 3 0.1")
    result = page.locator("[data-try-result]")
    expect(result.get_by_role("region", name="Result")).to_contain_text("word0 word1 word2", timeout=2 * TIMEOUT)
    expect(result).to_contain_text("first text after")
    job = page.locator("[data-view=endpoint-replicas] tbody a").inner_text()
    expect(result).to_contain_text(f"Answered by job {job}")
    send(page, "long")
    expect(result.get_by_role("alert")).to_contain_text("too many tokens")
    send(page, "count 5 0.2")
    expect(result.get_by_role("region", name="Result")).to_have_text("word0 ")
    send_button = page.get_by_role("button", name="Send")
    expect(send_button).to_have_attribute("aria-disabled", "true")
    expect(result.get_by_role("region", name="Result")).to_contain_text("word4")


def test_pages_follow_requests_live(page: Page, stack: Stack, warm: None, endpoint: str) -> None:
    page.goto("/endpoints/")
    row = page.locator("[data-view=endpoints] tbody tr", has_text=endpoint)
    expect(row.locator("[data-label=Replicas]")).to_contain_text("1 warm")
    cost = row.locator("[data-label='Cost, 24 h']")
    before = float(cost.inner_text().split()[0])
    list(stack.client().map(endpoint, [str(number) for number in range(6)]))
    expect(cost).to_contain_text(f"{before + 6:g}")
    expect(row.locator("[data-label=p50]")).to_contain_text("s")
    expect(row.locator("[data-label=Waiting]")).to_contain_text("0 of 1,000")


def test_pages_load_their_script_alone(page: Page, endpoint: str) -> None:
    """Other pages do not pay for it, and these pages have no charts."""
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url.rsplit("/", 1)[1]))
    page.goto("/jobs/")
    expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
    assert "endpoints.js" not in loaded
    loaded.clear()
    page.goto(PATH)
    expect(page.locator("[data-view=endpoint-head] .counts")).to_be_visible()
    assert "endpoints.js" in loaded and "draw.js" not in loaded


def test_pages_work_by_keyboard(page: Page, endpoint: str) -> None:
    page.goto("/overview/")
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.wait_for_url("**/endpoints/")
    expect(page.locator("[data-view=endpoints] tbody tr").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{PATH}")
    expect(page.get_by_role("button", name="Send")).to_be_enabled()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_pages_are_accessible_at_every_width(
    chromium: Browser, stack: Stack, warm: None, theme: Literal["light", "dark"], width: int
) -> None:
    context = chromium.new_context(
        base_url=stack.url, viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    log_in(page, stack.password)
    findings: list[str] = []
    for path in ("/endpoints/", PATH):
        page.goto(path)
        expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
        if path == PATH:
            expect(page.locator("[data-view=endpoint-batches] tbody tr").first).to_be_visible()
            send(page, '"seen"')
            expect(page.get_by_role("region", name="Result")).to_be_visible()
        findings += look_at(page, f"{path} {theme} {width}", width)
    context.close()
    assert not findings, "\n".join(findings)


def test_endpoint_is_kept_warm_with_the_reason_until_prewarming_is_switched_off(page: Page, stack: Stack) -> None:
    """A74: and the replica runs the warm-up command first, whose failure it survives."""
    client = stack.client()
    template: dict[str, Any] = {"command": [sys.executable, "-c", _SERVE]}
    warm_up = ["sh", "-c", "echo read the data; exit 3"]
    created = client.create_endpoint("regular", template, idle_seconds=20, warm_up=warm_up)
    history = (
        "import random, time\nfrom serving.prewarming import demo_history\n"
        f"demo_history.store({created.id}, time.time(), random.Random(1))"
    )
    words = [sys.executable, "manage.py", "shell", "-v0", "-c", history]
    subprocess.run(words, cwd=ROOT, env=stack.environment(), check=True)
    page.goto("/endpoints/default/regular/")
    head = page.locator("[data-view=endpoint-head]")
    expect(head).to_contain_text("Pre-warming keeps a replica warm now: a request within the next minute is ")
    expect(head).to_contain_text(re.compile(r"[\d,]+ cold starts avoided, 0\.0 GPU-hours wasted"))
    expect(page.locator("[data-view=endpoint-replicas] tbody tr")).to_contain_text("warm, idle")
    job_id = int(page.locator("[data-view=endpoint-replicas] tbody a").inner_text())
    log = client.logs(job_id).text
    assert log.index("read the data") < log.index("warm-up command ended with status 3; the replica starts without it")
    for theme, width in (("light", 1400), ("dark", 390)):
        page.emulate_media(color_scheme=cast(Literal["light", "dark"], theme))
        page.set_viewport_size({"width": width, "height": 900})
        assert look_at(page, f"kept warm {theme} {width}", width) == []
    page.get_by_role("button", name="Turn off").click()
    expect(head).to_contain_text("Pre-warming is off.")
    expect(page.get_by_role("button", name="Turn on")).to_be_visible()
    client.remove_endpoint("regular")


def test_limits_and_drain_change_the_page_in_place(page: Page, stack: Stack, endpoint: str) -> None:
    client = stack.client()
    client.create_endpoint("short-lived", {"command": ["true"]})
    page.goto("/endpoints/default/short-lived/")
    expect(page.locator("#endpoint-settings")).to_contain_text("at most 8 requests")
    page.locator("#endpoint-actions summary", has_text="Limits").click()
    page.locator("#endpoint-actions input[name=max_batch]").fill("0")
    page.get_by_role("button", name="Save limits").click()
    expect(page.locator(".toast")).to_contain_text("greater than or equal to 1")
    page.locator("#endpoint-actions input[name=max_batch]").fill("32")
    page.get_by_role("button", name="Save limits").click()
    expect(page.locator("#endpoint-settings")).to_contain_text("at most 32 requests")
    page.locator("#endpoint-actions summary", has_text="Drain").click()
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.locator("[data-view=endpoint-head] .state-draining")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    expect(page.locator("section", has=page.locator("#try")).get_by_role("note")).to_contain_text("accepts no requests")
    client.remove_endpoint("short-lived")
    expect(page.locator("[data-view=endpoint-head]")).to_contain_text("This no longer exists")
