"""The scripts of a page stay small."""

import gzip

import pytest

from tests.system.stack import ROOT

pytestmark = pytest.mark.browser


def test_page_scripts_are_small() -> None:
    """Each page loads live.js, and at most one of the others, where it is needed: at most 100 KB gzipped."""
    scripts = sorted((ROOT / "frontend" / "static" / "live").glob("*.js"))
    sizes = {script.name: len(gzip.compress(script.read_bytes(), 6)) for script in scripts}
    assert sizes.keys() == {"live.js", "draw.js", "endpoints.js"}
    assert sizes.pop("live.js") + max(sizes.values()) <= 100_000, sizes
