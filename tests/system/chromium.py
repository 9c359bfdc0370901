"""The Chromium of tests and benchmarks."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright


def path() -> str | None:
    """Return the path of Chromium, or None. The headless shell has the same engine, without the windows and menus around
    the page, which take half of the processor time."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")


@contextmanager
def launch() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path(), args=["--no-sandbox"])
        yield browser
        browser.close()
