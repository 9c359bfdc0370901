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
    run_cycle()
    execute("UPDATE nodes_node SET state = 'lost' WHERE name = 'n2'")
    assert Node.objects.get(name="n2").last_seen_at
    payload = '<time datetime="2099-01-31T08:00:00+00:00"'
    for path in (f"/jobs/{job_id}/", f"/jobs/{job_id}/foreseen/"):
        page = text_of(admin.get(path))
        assert payload in page, path
        assert not bare(page), path
    assert payload in text_of(browser(member).get("/mine/"))
    for path in ("/cluster/health/", "/nodes/n2/"):
        page = text_of(admin.get(path))
        assert 'data-tick="clock"' in page, path
        assert not bare(page), path
