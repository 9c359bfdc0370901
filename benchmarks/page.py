"""How fast the page is in Chromium with 200 nodes: first useful paint, live, recolouring, size of its script."""

import gzip
import statistics
from typing import Any

from playwright.sync_api import Page, expect

from benchmarks.report import arguments, publish
from benchmarks.scenes import PASSWORD, people
from benchmarks.screenshots import chromium, log_in
from benchmarks.stack import ROOT, Stack

# The numbers stand in what the server sends: the first paint that has content is useful.
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


def main() -> None:
    asked = arguments(__doc__ or "", nodes=200, loads=7)
    failures: list[str] = []
    with Stack() as stack:
        people(stack)
        stack.fleet(asked.nodes)
        with chromium() as browser:
            page = browser.new_context(base_url=stack.url, viewport={"width": 1440, "height": 900}).new_page()
            page.on("pageerror", lambda error: failures.append(str(error)))
            log_in(page, "admin", PASSWORD)
            paints, live = zip(*(_load(page) for _ in range(asked.loads)), strict=True)
            recolour = _recolour(page)
    publish(
        {
            "nodes": asked.nodes,
            "first useful paint of the overview, ms (median)": statistics.median(paints),
            "the overview live, ms (median)": statistics.median(live),
            "recolour 1,600 cells, ms (median)": statistics.median(recolour),
            "recolour 1,600 cells, ms (p95)": sorted(recolour)[int(len(recolour) * 0.95)],
            "script of all pages, gzip KB": _gzipped("live.js"),
            "script with charts, gzip KB": _gzipped("*.js"),
        },
        asked.json,
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


def _wait_live(page: Page) -> None:
    expect(page.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0, timeout=60_000)


def _gzipped(pattern: str) -> float:
    return sum(len(gzip.compress(file.read_bytes())) for file in (ROOT / "frontend/static/live").glob(pattern)) / 1000


if __name__ == "__main__":
    main()
