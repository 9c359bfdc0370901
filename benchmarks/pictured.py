"""Names every page, and every state of a page, that pictures are taken of and that axe looks at."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from playwright.sync_api import Page, WebSocketRoute, expect
from playwright.sync_api import TimeoutError as NotInTime

from benchmarks.scenes import PASSWORD

_TABS = ("timeline", "log", "gpus", "spec", "why", "events")
_TIMEOUT = 15_000


class View(NamedTuple):
    """A name, an address, and what is done there before anybody looks. `is_for_nobody`: without a login. `feed`: what
    becomes of the page's WebSocket: refused as by some proxies, silent before the first snapshot, or cut with the
    network."""

    name: str
    path: str
    act: Callable[[Page], None] | None = None
    is_for_nobody: bool = False
    feed: Literal["", "refused", "silent", "cut"] = ""


def views(page: Page) -> Iterator[View]:
    """All that the user of `page` can reach, as there are jobs, nodes and tenants to show."""
    rail = page.locator("nav.rail > a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    for path in rail:
        yield View(_name(path), path)
    yield View("wall", "/overview/?wall=1")
    yield View("bell", "/overview/", _open_bell)
    yield View("palette", "/overview/", _open_palette)
    yield View("help", "/overview/", lambda page: page.keyboard.press("?"))
    yield View("fleet-by-rack", "/fleet/?group=rack&fill=temperature")
    yield View("fleet-table", "/fleet/?view=table")
    yield View("submit-filled", "/submit/", _fill_submit)
    yield View("join", "/join/")
    yield View("join-token", "/join/", _make_join_token)
    yield View("not-found", "/jobs/999999999/")
    yield from _jobs(page)
    yield from _nodes(page)
    yield from _tenants(page)
    yield from _admin(page)
    for name in ("overview", "queue", "jobs", "nodes"):
        yield View(f"{name}-loading", f"/{name}/", feed="silent")
    yield View("overview-polling", "/overview/", feed="refused")
    yield View("overview-offline", "/overview/", feed="cut")
    yield from _for_nobody()


@contextmanager
def opened(page: Page, view: View) -> Iterator[tuple[Page, int]]:
    """Goes there, waits for what is live to be there, and does what belongs to it; gives the page, which is another one
    where the feed is disturbed, and the status of the answer."""
    shown = page.context.new_page() if view.feed else page
    sockets: list[WebSocketRoute] = []
    if view.feed:
        shown.route_web_socket("**/ws/live/", lambda socket: _disturb(socket, view.feed, sockets))
    answer = shown.goto(view.path)
    if view.feed != "silent":
        with suppress(AssertionError):  # a region may be refused, which is something to look at, too
            expect(shown.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0, timeout=_TIMEOUT)
    if view.feed == "cut":
        shown.context.set_offline(True)
        for socket in sockets:
            socket.close()
    if view.feed:
        words = {"silent": "connecting", "refused": "polling", "cut": "offline"}[view.feed]
        expect(shown.locator("[data-freshness]").first).to_contain_text(words, timeout=4 * _TIMEOUT)
    if view.act is not None:
        view.act(shown)
    try:
        yield shown, 0 if answer is None else answer.status
    finally:
        if view.feed:
            shown.context.set_offline(False)
            shown.close()


def _disturb(socket: WebSocketRoute, feed: str, sockets: list[WebSocketRoute]) -> None:
    sockets.append(socket)
    if feed == "refused":
        socket.close()
    elif feed == "cut":
        socket.connect_to_server()


def _for_nobody() -> Iterator[View]:
    yield View("login", "/login/", is_for_nobody=True)
    yield View("login-refused", "/login/", _log_in_wrongly, is_for_nobody=True)
    yield View("form-too-old", "/login/", _log_in_without_cookies, is_for_nobody=True)
    yield View("not-permitted", "/login/", _go_where_only_admins_may, is_for_nobody=True)


def _name(path: str) -> str:
    return "-".join(part for part in path.split("/") if part) or "overview"


def _jobs(page: Page) -> Iterator[View]:
    """A job of each state, each tab of one that runs, some of one that waits, and an opened row of the queue."""
    for state in ("running", "pending", "held", "failed", "completed"):
        found = _items(page, f"/api/v1/jobs?limit=1&state={state}")
        if not found:
            continue
        path = f"/jobs/{found[0]['id']}/"
        yield View(f"job-{state}", path)
        for tab in _TABS if state == "running" else ("timeline", "gpus") if state == "pending" else ():
            yield View(f"job-{state}-{tab}", f"{path}?tab={tab}")
        if state == "pending":
            yield View("queue-opened", "/queue/", _open_row)
        if state == "running":
            yield View("job-cancel", path, _ask_to_cancel)


def _nodes(page: Page) -> Iterator[View]:
    found = _items(page, "/api/v1/nodes")
    for node in found[:1]:
        yield View("fleet-chosen", f"/fleet/?gpu={node['name']}/0")
    for node in found[1:2]:
        yield View("node", f"/nodes/{node['name']}/")
    for node in [node for node in found if node["state"] == "lost"][:1]:
        yield View("node-lost", f"/nodes/{node['name']}/")


def _tenants(page: Page) -> Iterator[View]:
    found = [each["name"] for each in _items(page, "/api/v1/tenants")]
    if not found:
        return
    name = "nlp" if "nlp" in found else found[0]
    yield View("tenant", f"/tenants/{name}/")
    yield View("quota", f"/tenants/{name}/quota/")
    yield View("quota-preview", f"/tenants/{name}/quota/", _edit_quota)


def _admin(page: Page) -> Iterator[View]:
    page.goto("/tenants/nlp/")
    raw = page.locator("main a[href^='/admin/tenants/tenant/']")
    if raw.count():
        yield View("admin", "/admin/")
        yield View("admin-tenants", "/admin/tenants/tenant/")
        yield View("admin-quota", raw.first.get_attribute("href") or "", _edit_quota_in_the_admin)


def _items(page: Page, path: str) -> list[dict[str, Any]]:
    answer = page.request.get(path)
    found: list[dict[str, Any]] = answer.json()["items"] if answer.ok else []
    return found


def _open_bell(page: Page) -> None:
    page.locator(".bell summary").click()


def _open_palette(page: Page) -> None:
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Go to").fill("no")


def _open_row(page: Page) -> None:
    page.locator("button.opener").first.click()
    with suppress(NotInTime):
        page.locator("tr.detail dl:not(:has([role=status]))").first.wait_for(timeout=_TIMEOUT)


def _ask_to_cancel(page: Page) -> None:
    asking = page.locator("details.confirm > summary", has_text="Cancel")
    if asking.count():
        asking.first.click()


def _fill_submit(page: Page) -> None:
    if not page.locator("#id_command").count():
        return
    _fill(page, {"command": "python train.py --epochs 10", "gpu_count": "4", "name": "resnet-152"})
    with suppress(NotInTime):
        page.locator("#equivalent", has_text="resnet-152").wait_for(timeout=_TIMEOUT)


def _make_join_token(page: Page) -> None:
    making = page.get_by_role("button", name="Create a join token")
    if making.count():
        making.click()
        page.wait_for_load_state()


def _edit_quota(page: Page) -> None:
    if page.locator("#id_max_gpus").count():
        _fill(page, {"guaranteed_gpus": "0", "max_gpus": "2"})
        with suppress(NotInTime):
            page.locator("#effect .effects").wait_for(timeout=_TIMEOUT)


def _fill(page: Page, values: dict[str, str]) -> None:
    """All at once, so that one preview is asked for and none is broken off."""
    page.evaluate(
        """values => { for (const [name, value] of Object.entries(values)) {
            var field = document.getElementById(`id_${name}`); field.value = value; }
            field.dispatchEvent(new Event("input", {bubbles: true})); }""",
        values,
    )


def _edit_quota_in_the_admin(page: Page) -> None:
    for name, value in (("guaranteed_gpus", "0"), ("max_gpus", "2")):
        page.locator(f"input[name$='{name}']").first.fill(value)
    with page.expect_navigation():
        page.locator("input[name$='max_gpus']").first.evaluate("field => field.form.requestSubmit()")
    page.locator("input[name$='max_gpus']").first.evaluate("field => field.scrollIntoView({block: 'center'})")


def _log_in_wrongly(page: Page) -> None:
    page.locator("#id_username").fill("ada")
    page.locator("#id_password").fill("not it")
    page.locator("main button[type=submit]").click()
    page.wait_for_load_state()


def _log_in_without_cookies(page: Page) -> None:
    page.locator("#id_username").fill("ada")
    page.locator("#id_password").fill(PASSWORD)
    page.context.clear_cookies()
    page.locator("main button[type=submit]").click()
    expect(page.locator("main")).to_contain_text("403")


def _go_where_only_admins_may(page: Page) -> None:
    """As a member, whose login is forgotten again."""
    page.locator("#id_username").fill("ada")
    page.locator("#id_password").fill(PASSWORD)
    page.locator("main button[type=submit]").click()
    page.locator("nav.rail").wait_for()
    page.goto("/tenants/nlp/quota/")
    expect(page.locator("main")).to_contain_text(re.compile("40[34]"))
    page.context.clear_cookies()
