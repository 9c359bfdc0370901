"""A page shows the same before and after its socket connects."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.browser
# Logs, charts and notices are fetched.
_REGIONS = "[data-live][data-view]:not([data-view=bell], [data-view=job-log], [data-view=job-gpus])"
_TEXTS = f"""() => Object.fromEntries([...document.querySelectorAll("{_REGIONS}")].map((region) => [
  `${{region.dataset.view}} ${{region.id}}`,
  region.innerText || region.querySelector("canvas")?.parentElement.getAttribute("aria-label") || "",
]))"""
# Ages, waits and GPU-hours (two decimals, more of the first minute) grow in the meantime. Readings, cycles, and the database's connections ("of
# 100") and locks change every second.
_CHANGING = re.compile(
    r"just now|\b\d+ of 100\b|\b\d+ (recorded|waiting for a lock)\b|"
    r"(in )?\b[\d.]+ (s|min)\b( ago)?|\b[\d.,]+ (ms\b|%|[MG]iB|°C|k?W\b)|\b\d+\.\d\d\b|\b0\.00\d+"
)


class HeldSocket:
    """The page's WebSocket. Messages of the server wait until `release`."""

    def __init__(self, page: Page) -> None:
        self._waiting: list[tuple[WebSocketRoute, str | bytes]] | None = []
        page.route_web_socket("**/ws/live/", self._route)

    def _route(self, socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        socket.on_message(server.send)
        server.on_message(lambda message: self._pass_on(socket, message))

    def _pass_on(self, socket: WebSocketRoute, message: str | bytes) -> None:
        if self._waiting is None:
            socket.send(message)
        else:
            self._waiting.append((socket, message))

    def release(self) -> None:
        waiting, self._waiting = self._waiting or [], None
        for socket, message in waiting:
            socket.send(message)


@pytest.fixture(scope="module")
def jobs(stack: Stack) -> Iterator[list[int]]:
    client = stack.client()
    running = client.submit(["sleep", "600"], gpus=2, name="running").id
    waiting = client.submit(["sleep", "600"], gpus=16, ranks=2, gang_scheduling=True, name="waiting").id
    wait_for(lambda: client.get(running).state == "running" and client.get(waiting).reason is not None, 60, "jobs")
    yield [running, waiting]
    client.cancel(running)
    client.cancel(waiting)


@pytest.mark.parametrize(
    "path",
    ["/overview/", "/overview/?wall=1", "/fleet/?view=table", "/queue/", "/queue/?sort=-gpus", "/jobs/", "/jobs/?state=live",
     "/nodes/", "/nodes/?group=open", "/endpoints/", "/mine/", "/tenants/", "/cluster/health/", "/jobs/{}/", "/jobs/{}/?tab=timeline",
     "/jobs/{}/?tab=events"],
)  # fmt: skip
def test_first_paint_equals_live_page(page: Page, jobs: list[int], path: str) -> None:
    socket = HeldSocket(page)
    # Estimates arrive at any time, with or without the socket.
    page.route("**/queue/estimates/**", lambda route: route.fulfill(json={}))
    page.goto(path.format(jobs[0]))
    page.wait_for_function(f"() => Object.values(({_TEXTS})()).every(Boolean)", timeout=20_000)
    expect(page.locator("[data-freshness]").first).not_to_have_class(re.compile("is-live"))
    first = page.evaluate(_TEXTS)
    socket.release()
    expect(page.locator("[data-freshness]").first).to_have_class(re.compile("is-live"))
    expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0)
    live = page.evaluate(_TEXTS)
    assert {view: _CHANGING.sub("…", text) for view, text in first.items()} == {
        view: _CHANGING.sub("…", text) for view, text in live.items()
    }


def test_nodes_of_job_have_their_gpus_from_the_first_paint(page: Page, jobs: list[int]) -> None:
    HeldSocket(page)
    page.goto(f"/jobs/{jobs[0]}/")
    expect(page.locator("[data-key=Nodes]")).to_have_text(re.compile(r"^Nodes\S+ GPU \d+, \d+$"))
