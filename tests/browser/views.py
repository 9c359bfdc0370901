"""Every page, and every state of a page, for screenshots and axe checks."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

import psycopg
from playwright.sync_api import Page, WebSocketRoute, expect
from playwright.sync_api import TimeoutError as NotInTime

from tests.system.people import PASSWORD
from tests.system.stack import Stack

_TABS = ("timeline", "log", "gpus", "spec", "why", "events")
_TIMEOUT = 15_000


class View(NamedTuple):
    """A name, an address, and the actions before the screenshot. `is_anonymous`: without a login. `feed`: the state of
    the page's WebSocket: refused as by some proxies, silent before the first snapshot, or cut with the network."""

    name: str
    path: str
    perform: Callable[[Page], None] | None = None
    is_anonymous: bool = False
    feed: Literal["", "refused", "silent", "cut"] = ""


def views(page: Page) -> Iterator[View]:
    """Yield all views that the user of `page` can reach, for the jobs, nodes and tenants that exist."""
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
    yield from _endpoints(page)
    yield from _tenants(page)
    yield from _admin(page)
    for name in ("overview", "queue", "jobs", "nodes", "endpoints"):
        yield View(f"{name}-loading", f"/{name}/", feed="silent")
    yield View("overview-polling", "/overview/", feed="refused")
    yield View("overview-offline", "/overview/", feed="cut")
    yield from _anonymous()


@contextmanager
def opened(page: Page, view: View) -> Iterator[tuple[Page, int]]:
    """Open a view, wait for its live parts, and perform its actions. Yield the page, which is a new one if the feed is
    disturbed, and the status of the answer."""
    tab = page.context.new_page() if view.feed else page
    sockets: list[WebSocketRoute] = []
    if view.feed:
        tab.route_web_socket("**/ws/live/", lambda socket: _disturb(socket, view.feed, sockets))
    answer = tab.goto(view.path)
    if view.feed != "silent":
        with suppress(AssertionError):  # a region may be refused, which is a state to capture, too
            expect(tab.locator("[data-live][data-view]:not(.is-on)")).to_have_count(0, timeout=_TIMEOUT)
    if view.feed == "cut":
        tab.context.set_offline(True)
        for socket in sockets:
            socket.close()
    if view.feed:
        expected = {"silent": "connecting", "refused": "polling", "cut": "offline"}[view.feed]
        expect(tab.locator("[data-freshness]").first).to_contain_text(expected, timeout=4 * _TIMEOUT)
    if view.perform is not None:
        view.perform(tab)
    try:
        yield tab, 0 if answer is None else answer.status
    finally:
        if view.feed:
            tab.context.set_offline(False)
            tab.close()


@contextmanager
def failing(stack: Stack) -> Iterator[str]:
    """Rename a table meanwhile, so that the page at the yielded address answers 500."""
    with psycopg.connect(stack.database_url(), autocommit=True) as database:
        database.execute("ALTER TABLE tenants_rate RENAME TO tenants_rate_away")
        try:
            yield "/usage/"
        finally:
            database.execute("ALTER TABLE tenants_rate_away RENAME TO tenants_rate")


def _disturb(socket: WebSocketRoute, feed: str, sockets: list[WebSocketRoute]) -> None:
    sockets.append(socket)
    if feed == "refused":
        socket.close()
    elif feed == "cut":
        socket.connect_to_server()


def _anonymous() -> Iterator[View]:
    yield View("login", "/login/", is_anonymous=True)
    yield View("login-refused", "/login/", _log_in_wrongly, is_anonymous=True)
    yield View("form-too-old", "/login/", _log_in_without_cookies, is_anonymous=True)
    yield View("not-permitted", "/login/", _go_where_only_admins_may, is_anonymous=True)


def _name(path: str) -> str:
    return "-".join(part for part in path.split("/") if part) or "overview"


def _jobs(page: Page) -> Iterator[View]:
    """Yield a job of each state, each tab of a running one, some of a waiting one, and an opened row of the queue."""
    for state in ("running", "pending", "held", "failed", "completed"):
        jobs = _items(page, f"/api/v1/jobs?limit=1&state={state}")
        if not jobs:
            continue
        path = f"/jobs/{jobs[0]['id']}/"
        yield View(f"job-{state}", path)
        for tab in _TABS if state == "running" else ("timeline", "gpus") if state == "pending" else ():
            yield View(f"job-{state}-{tab}", f"{path}?tab={tab}")
        if state == "pending":
            yield View("queue-opened", "/queue/", _open_row)
        if state == "running":
            yield View("job-cancel", path, _ask_to_cancel)


def _nodes(page: Page) -> Iterator[View]:
    nodes = _items(page, "/api/v1/nodes")
    for node in nodes[:1]:
        yield View("fleet-chosen", f"/fleet/?gpu={node['name']}/0")
    for node in nodes[1:2]:
        yield View("node", f"/nodes/{node['name']}/")
    for node in [node for node in nodes if node["state"] == "lost"][:1]:
        yield View("node-lost", f"/nodes/{node['name']}/")


def _endpoints(page: Page) -> Iterator[View]:
    for endpoint in _items(page, "/api/v1/endpoints")[:1]:
        path = f"/endpoints/{endpoint['tenant']}/{endpoint['name']}/"
        yield View("endpoint", path)
        yield View("endpoint-limits", path, _ask_for_limits)


def _tenants(page: Page) -> Iterator[View]:
    names = [item["name"] for item in _items(page, "/api/v1/tenants")]
    if not names:
        return
    name = "nlp" if "nlp" in names else names[0]
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
    items: list[dict[str, Any]] = answer.json()["items"] if answer.ok else []
    return items


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


def _ask_for_limits(page: Page) -> None:
    page.locator("details.confirm > summary", has_text="Limits").click()


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
    """Fill all fields at once, so that one preview is requested and none is aborted."""
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
    """Open an admin's page as a member, and remove the login again."""
    page.locator("#id_username").fill("ada")
    page.locator("#id_password").fill(PASSWORD)
    page.locator("main button[type=submit]").click()
    page.locator("nav.rail").wait_for()
    page.goto("/tenants/nlp/quota/")
    expect(page.locator("main")).to_contain_text(re.compile("40[34]"))
    page.context.clear_cookies()
