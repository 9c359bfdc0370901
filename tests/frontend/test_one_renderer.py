"""Each live region of a page has one renderer: a view of the page's script, or the server's template."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gpusched.protocol.arrays import ArrayRequest
from tests.factories import make_node, make_user, run_cycle, submit
from tests.frontend.browsing import PAGES, browser, text_of
from tests.serving.requests import make_endpoint

pytestmark = pytest.mark.django_db(transaction=True)

MAIN = Path(__file__).resolve().parents[2] / "frontend" / "src" / "main.ts"
# The view of regions that the server draws: it reloads them.
SERVER = "again"
_VOID = {"br", "hr", "img", "input", "link", "meta", "use"}


class Regions(HTMLParser):
    """`content` by region: what the server has drawn in it. `<template>` elements, which hold empty states, are not
    drawn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.content: dict[str, str] = {}
        self._open: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._draw(f"<{tag}>" if tag != "template" else "")
        attributes = dict(attrs)
        view = attributes.get("data-view", "") if "data-live" in attributes else ""
        region = view if view != SERVER else f"{SERVER} #{attributes.get('id', '')}"
        if region:
            self.content.setdefault(region, "")
        if tag not in _VOID:
            self._open.append((tag, region))

    def handle_endtag(self, tag):
        # Some end tags are optional.
        while tag not in _VOID and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        self._draw(data.strip())

    def _draw(self, text):
        if not any(tag == "template" for tag, _ in self._open):
            for _, region in self._open:
                if region:
                    self.content[region] += text


def views_of_script():
    registry = re.search(r"new Regions\(\s*\{ hub \},\s*\{(.*?)\n  \},", MAIN.read_text(), re.S)
    assert registry
    return {name.strip('"') for name in re.findall(r'^\s*("?[\w-]+"?)(?:: [\w.]+)?,$', registry[1], re.M)}


@pytest.fixture
def paths(nlp, member):
    """Every page with a live region, of a cluster where each region has something to show."""
    agent = make_node(name="n1", gpus=4)
    make_node(name="n2", gpus=4)
    running, *_ = (submit(member, nlp, gpu_count=3) for _ in range(3))
    array = submit(member, nlp, gpu_count=1, array=ArrayRequest(count=3))
    endpoint = make_endpoint(nlp, member)
    run_cycle()
    agent.start_all()
    tabs = [f"/jobs/{running}/?tab={tab}" for tab in ("log", "timeline", "gpus", "events")]
    return [
        *PAGES,
        "/overview/?wall=1",
        "/admin/",
        "/nodes/n1/",
        "/tenants/nlp/",
        f"/jobs/{array}/",
        f"/endpoints/nlp/{endpoint.name}/",
        *tabs,
    ]


def test_every_live_region_has_one_renderer(paths):
    """A region of the script comes empty; a region of the server comes complete, and has an id to be found again."""
    admin = browser(make_user("root", admin=True))
    declared, visible = views_of_script(), set()
    doubles = []
    for path in paths:
        for region, content in Regions(text_of(admin.get(path))).content.items():
            if region.startswith(SERVER):
                assert content and region != f"{SERVER} #", f"{path}: no renderer draws {region}"
                visible.add(SERVER)
                continue
            visible.add(region)
            if content:
                doubles.append(f"{path}: the template and the script draw {region}: {content[:80]}")
    assert doubles == []
    assert visible == declared


def test_every_script_region_is_drawn_from_carried_rows(paths):
    """Without rows in the page, a region would stay empty until the socket connects. Logs, charts and notices are
    fetched."""
    fetched = {"bell", "job-log", "job-gpus", "node-readings", SERVER}
    admin = browser(make_user("root", admin=True))
    for path in paths:
        page = text_of(admin.get(path))
        regions = {region for region in Regions(page).content if not region.startswith(SERVER)} - fetched
        assert bool(regions) <= ('<script type="application/json" data-' in page), f"{path}: {regions}"
