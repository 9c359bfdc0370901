"""The speed of the page in Chromium with 200 nodes: first useful paint, live, recolouring, a queue of 10,000 rows, the
end of a log of 100 MB, recovery after a minute without network, size of its script."""

import gzip
import statistics
import time
from typing import Any

from playwright.sync_api import Page, WebSocketRoute, expect

from benchmarks.report import arguments, publish
from benchmarks.screenshots import log_in
from gpusched.protocol.job_request import JobRequest
from tests.system.chromium import launch
from tests.system.people import PASSWORD, people
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

# The first paint waits for the script, which draws the rows that the page carries: it is useful.
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
# A read of one pixel waits until the canvas is drawn.
_RECOLOUR = """() => {
  const select = document.querySelector("select[data-fleet-fill]");
  const canvas = document.querySelector('[data-view=fleet] canvas');
  const fills = ['utilisation', 'temperature', 'memory', 'power', 'state'];
  return Array.from({length: 60}, (_, at) => {
    select.value = fills[at % fills.length];
    const from = performance.now();
    select.dispatchEvent(new Event('change'));
    canvas.getContext('2d').getImageData(0, 0, 1, 1);
    return performance.now() - from;
  }).slice(10);
}"""
_NOW = "performance.now()"
# Each frame scrolls by a third of the window. Measures the time of the page's script in a frame, and of the frame.
_SCROLL = """() => new Promise(done => {
  const real = window.requestAnimationFrame.bind(window), frames = [], work = [];
  let spent = 0, last = performance.now();
  window.requestAnimationFrame = run => real(now => {
    const from = performance.now(); run(now); spent += performance.now() - from;
  });
  const step = now => {
    frames.push(now - last); work.push(spent); last = now; spent = 0;
    window.scrollBy(0, innerHeight / 3);
    if (frames.length < 300) real(step); else done({frames: frames.slice(10), work: work.slice(10)});
  };
  real(step);
})"""
_WAITING_JOBS, _LOG_MB, _OFFLINE_SECONDS = 10_000, 100, 60
_LINE = "step 000000 of a log as jobs write it, a hundred characters a line, over and over again until it is long"


def main() -> None:
    options = arguments(__doc__ or "", nodes=200, loads=7)
    failures: list[str] = []
    with Stack() as stack:
        people(stack)
        stack.fleet(options.nodes)
        with launch() as browser:
            page = browser.new_context(base_url=stack.url, viewport={"width": 1440, "height": 900}).new_page()
            page.on("pageerror", lambda error: failures.append(str(error)))
            log_in(page, "admin", PASSWORD)
            paints, live = zip(*(_load(page) for _ in range(options.loads)), strict=True)
            recolour = _recolour(page)
            log_ms = _open_log(page, stack)
            offline_ms = _after_offline(page.context.new_page(), stack)
            scrolled = _scroll(page, stack)
            plain = _scroll_plain(page)
    publish(
        {
            "nodes": options.nodes,
            "first useful paint of the overview, ms (median)": statistics.median(paints),
            "the overview live, ms (median)": statistics.median(live),
            "recolour 1,600 cells, ms (median)": statistics.median(recolour),
            "recolour 1,600 cells, ms (p95)": sorted(recolour)[int(len(recolour) * 0.95)],
            "end of a log of 100 MB, ms (median)": statistics.median(log_ms),
            "right again after a minute without network, ms (slowest)": max(offline_ms),
            "scroll 10,000 rows, script in a frame, ms (median)": statistics.median(scrolled["work"]),
            "scroll 10,000 rows, script in a frame, ms (p95)": sorted(scrolled["work"])[
                int(len(scrolled["work"]) * 0.95)
            ],
            "scroll 10,000 rows, frame, ms (median)": statistics.median(scrolled["frames"]),
            "scroll 10,000 lines of plain text, frame, ms (median)": statistics.median(plain["frames"]),
            "script of all pages, gzip KB": _gzipped("live.js"),
            "script with charts, gzip KB": _gzipped("*.js"),
        },
        options.json,
        len(failures),
    )


def _load(page: Page) -> tuple[float, float]:
    page.goto("/overview/")
    _wait_live(page)
    live: Any = page.evaluate(_NOW)
    return float(page.evaluate(_PAINT)), float(live)


def _recolour(page: Page) -> list[float]:
    page.goto("/fleet/")
    _wait_live(page)
    times: list[float] = page.evaluate(_RECOLOUR)
    return times


def _scroll(page: Page, stack: Stack) -> dict[str, list[float]]:
    jobs = [
        JobRequest(tenant="default", name=f"sweep-{at}", command=["true"], not_before="2099-01-01T00:00:00Z")
        for at in range(_WAITING_JOBS)
    ]
    stack.client().submit_many(jobs)
    page.goto("/queue/")
    expect(page.locator("tr.group").first).to_contain_text(str(_WAITING_JOBS), timeout=60_000)
    page.wait_for_timeout(2000)
    times: dict[str, list[float]] = page.evaluate(_SCROLL)
    return times


def _scroll_plain(page: Page) -> dict[str, list[float]]:
    """Return the frame times of this browser on this machine for a page without a script."""
    page.goto("about:blank")
    page.set_content("<pre>" + f"{_LINE}\n" * _WAITING_JOBS + "</pre>")
    page.wait_for_timeout(2000)
    times: dict[str, list[float]] = page.evaluate(_SCROLL)
    return times


def _open_log(page: Page, stack: Stack, loads: int = 5) -> list[float]:
    """Return the times from the beginning of the navigation until the last line is in the page."""
    client = stack.client()
    script = f"yes '{_LINE}' | head -c {_LOG_MB * 1_000_000}; echo; echo the very end"
    job = client.submit(["sh", "-c", script], name="long-log")
    wait_for(lambda: client.get(job.id).is_final, 600, "the long log to be written", pause=0.5)
    wait_for(lambda: b"the very end" in client.logs(job.id, offset=-100).data, 600, "all of the log", pause=0.5)
    times = []
    for _ in range(loads):
        page.goto(f"/jobs/{job.id}/?tab=log")
        page.locator("section.is-on pre.log .line", has_text="the very end").wait_for(timeout=60_000)
        times.append(float(page.evaluate(_NOW)))
    return times


def _after_offline(page: Page, stack: Stack, times: int = 3) -> list[float]:
    """Return the times from the return of the network until the page shows the job's present state."""
    sockets: list[WebSocketRoute] = []

    def connect(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        socket.connect_to_server()

    # An offline browser keeps its open connections.
    page.route_web_socket("**/ws/live/", connect)
    page.goto("/jobs/")
    _wait_live(page)
    took = []
    for _ in range(times):
        page.context.set_offline(True)
        sockets[-1].close()
        job = stack.client().submit(["true"], name="meanwhile")
        page.wait_for_timeout(_OFFLINE_SECONDS * 1000)
        completed = page.locator(f"tr[data-key='{job.id}'] .state-completed")
        expect(completed).to_have_count(0)
        began = time.perf_counter()
        page.context.set_offline(False)
        completed.wait_for(timeout=60_000)
        took.append((time.perf_counter() - began) * 1000)
        _wait_live(page)
    page.close()
    return took


def _wait_live(page: Page) -> None:
    expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0, timeout=60_000)
    page.locator("[data-freshness].is-live").first.wait_for(timeout=60_000)


def _gzipped(pattern: str) -> float:
    return sum(len(gzip.compress(file.read_bytes())) for file in (ROOT / "frontend/static/live").glob(pattern)) / 1000


if __name__ == "__main__":
    main()
