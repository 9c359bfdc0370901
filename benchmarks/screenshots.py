"""Takes screenshots of every page in Chromium: light and dark, wide and phone, of empty, small and large clusters.

.venv/bin/python benchmarks/screenshots.py --out /tmp/pictures                  all scenes
.venv/bin/python benchmarks/screenshots.py --scene many --serve                 starts one and prints its address
.venv/bin/python benchmarks/screenshots.py --at http://127.0.0.1:PORT --only fleet --wide --light
"""

import argparse
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import Browser, ConsoleMessage, Error, Page

from benchmarks.scenes import SCENES
from tests.browser.views import View, failing, opened, views
from tests.system.chromium import launch
from tests.system.people import PASSWORD
from tests.system.stack import Stack

WIDE, PHONE = (1440, 900), (390, 844)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main() -> None:
    options = _arguments()
    # As Ctrl-C: the started processes end, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.at:
        _capture_all(options.at, options.out, options)
        return
    for scene in [options.scene] if options.scene else SCENES:
        with Stack() as stack:
            SCENES[scene](stack)
            if options.serve:
                _serve(stack)
                return
            # The page reports idle held GPUs after a minute.
            time.sleep(75 if scene == "many" else 5)
            _capture_all(stack.url, options.out / scene, options)
            if re.search(options.only, "server-failed"):
                with failing(stack) as path:
                    options.path = [path]
                    _capture_all(stack.url, options.out / scene / "server-failed", options)
                    options.path = []


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("/tmp/pictures"))  # noqa: S108 - for a person to look at
    parser.add_argument("--scene", choices=list(SCENES), help="only this one")
    parser.add_argument("--serve", action="store_true", help="start the scene and keep it until Ctrl-C")
    parser.add_argument("--at", help="capture the server that runs there")
    parser.add_argument("--only", default="", help="pages whose names match this expression")
    parser.add_argument("--user", default="admin", help="the user: admin, ada, grace, linus, noor, kofi")
    parser.add_argument("--path", action="append", default=[], help="this address instead, such as /fleet/?fill=power")
    for flag in ("light", "dark", "wide", "phone"):
        parser.add_argument(f"--{flag}", action="store_true", help=f"only {flag}")
    parser.add_argument("--small", action="store_true", help="in as few bytes as possible, as for docs/images")
    return parser.parse_args()


def _serve(stack: Stack) -> None:
    print(f"{stack.url}  everybody's password: {PASSWORD}", flush=True)
    with suppress(KeyboardInterrupt):
        signal.pause()


def _capture_all(url: str, out: Path, options: argparse.Namespace) -> None:
    out.mkdir(parents=True, exist_ok=True)
    themes = [theme for theme in THEMES if getattr(options, theme)] or THEMES
    sizes = [size for size, is_chosen in ((WIDE, options.wide), (PHONE, options.phone)) if is_chosen] or (WIDE, PHONE)
    with launch() as browser:
        for theme in themes:
            for size in sizes:
                settings = {"viewport": {"width": size[0], "height": size[1]}, "color_scheme": theme}
                stranger = _open_page(browser, url, settings)
                page = _open_page(browser, url, settings)
                log_in(page, options.user, PASSWORD)
                for view in _chosen(page, options):
                    file = out / f"{view.name}-{theme}-{size[0]}.png"
                    try:
                        _capture(stranger if view.is_anonymous else page, view, file, is_phone=size == PHONE)
                    except (Error, AssertionError) as error:
                        print(f"{file}: {error}", file=sys.stderr)
                    else:
                        if options.small:
                            Image.open(file).convert("RGB").save(file, optimize=True)
                page.context.close()
                stranger.context.close()


def _open_page(browser: Browser, url: str, settings: dict[str, Any]) -> Page:
    page = browser.new_context(base_url=url, **settings).new_page()
    page.on("console", _log_console_error)
    page.on("pageerror", _fail)
    return page


def _chosen(page: Page, options: argparse.Namespace) -> list[View]:
    paths = [View(re.sub(r"\W+", "-", path).strip("-"), path) for path in options.path]
    return paths or [view for view in views(page) if re.search(options.only, view.name)]


def _log_console_error(message: ConsoleMessage) -> None:
    if message.type == "error":
        print(f"  {message.text}", file=sys.stderr)


def _fail(error: Error) -> None:
    print(f"  {error}", file=sys.stderr)


def log_in(page: Page, user: str, password: str) -> None:
    page.goto("/login/")
    page.locator("#id_username").fill(user)
    page.locator("#id_password").fill(password)
    page.locator("main button[type=submit]").click()
    page.wait_for_selector("nav.rail")


def _capture(page: Page, view: View, file: Path, is_phone: bool) -> None:
    with opened(page, view) as (tab, _):
        tab.wait_for_timeout(500)
        tab.screenshot(path=file, full_page=is_phone, animations="disabled")
        too_wide = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
    print(f"{file}" + (f"  {too_wide} px too wide" if too_wide > 0 else ""), flush=True)


if __name__ == "__main__":
    main()
