"""Moments within sentences are <time> elements in local time, never bare RFC 3339."""

import re

import pytest

from frontend.ui.formatting import clocked, moment
from gpusched.lib.db.sql import execute
from nodes.models import Node
from tests.factories import make_node, make_user, run_cycle, submit
from tests.frontend.browsing import browser, text_of

_BARE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")


def bare(page):
    """The moments that stand in the text of a page outside of <time>."""
    return _BARE.findall(re.sub(r"(?s)<(time|script|pre)\b.*?</\1>|<[^>]*>", " ", page))


@pytest.mark.parametrize(
    ("written", "at"),
    [
        ("2031-01-31T08:00:00Z", "2031-01-31T08:00:00+00:00"),
        ("2031-01-31T08:00:00.250Z", "2031-01-31T08:00:00.250000+00:00"),
        ("2031-01-31 08:00:00 UTC", "2031-01-31T08:00:00+00:00"),
        ("2031-01-31 08:00 UTC", "2031-01-31T08:00:00+00:00"),
    ],
)
def test_moment_pattern_matches_all_formats(written, at):
    message = clocked(f"not before {written}, <b>")
    assert message.startswith("not before <time ") and message.endswith("</time>, &lt;b&gt;")
    assert f'datetime="{at}"' in message and 'data-tick="clock"' in message and f">{written}<" in message


def test_clocked_keeps_text_without_moments():
    assert clocked("a < b & 2031-01-31") == "a &lt; b &amp; 2031-01-31"
    assert clocked("label day=2031-02-30T08:00:00Z") == "label day=2031-02-30T08:00:00Z"
    assert clocked(None) == clocked("") == ""
    assert 'class="na"' in moment(None)


@pytest.mark.django_db(transaction=True)
def test_pages_have_no_unformatted_moments(nlp, member):
    admin = browser(make_user("root", admin=True))
    make_node(name="n1", gpus=2)
    make_node(name="n2", gpus=2)
    job_id = submit(member, nlp, gpu_count=1, not_before="2099-01-31T08:00:00Z")
    later = submit(member, nlp, gpu_count=1)
    run_cycle()
    execute("UPDATE nodes_node SET state = 'lost' WHERE name = 'n2'")
    assert Node.objects.get(name="n2").last_seen_at
    payload = '<time datetime="2099-01-31T08:00:00+00:00"'
    jobs = [
        f"/jobs/{job_id}/",
        f"/jobs/{job_id}/?tab=log",
        f"/jobs/{job_id}/foreseen/",
        "/queue/",
        "/jobs/",
        "/overview/",
    ]
    for path in jobs:
        page = text_of(admin.get(path))
        assert payload in page, path
        assert not bare(page), path
    assert payload in text_of(browser(member).get("/mine/"))
    for path in ("/cluster/health/", "/nodes/n2/", f"/jobs/{later}/?tab=events"):
        page = text_of(admin.get(path))
        assert 'data-tick="clock"' in page or "events" in path, path
        assert not bare(page), path


@pytest.mark.django_db(transaction=True)
def test_overview_template_matches_its_script(nlp):
    """The same order, shapes and times as those of frontend/src/pages/overview/overview.ts, lest the page jump when it goes live."""
    for name in ("n1", "n2", "n3"):
        make_node(name=name, gpus=1)
    execute("UPDATE nodes_node SET state = 'lost' WHERE name = 'n3'")
    allocated = (
        "UPDATE nodes_device SET health = 'quarantined' WHERE node_id IN (SELECT id FROM nodes_node WHERE name < 'n3')"
    )
    execute(allocated)
    execute("UPDATE nodes_node SET intent = 'cordoned' WHERE name = 'n1'")
    run_cycle()
    page = text_of(browser(make_user("root", admin=True)).get("/overview/"))
    order = ["2 GPUs are quarantined", "1 node stopped reporting", "1 node accepts no new jobs"]
    assert sorted(order, key=page.index) == order
    assert re.search(r'state-cordoned"><i aria-hidden="true">‖</i> closed', page)
    assert re.search(r'n3</a> <span class="muted"> for <time [^>]*data-tick="roughly"', page)
