"""The scripts of a page stay small."""

import gzip

import pytest

from tests.system.stack import ROOT

pytestmark = pytest.mark.browser


def test_page_scripts_are_small() -> None:
    """With those for charts, which are loaded where there is one: at most 100 KB gzipped."""
    scripts = sorted((ROOT / "frontend" / "static" / "live").glob("*.js"))
    sizes = {script.name: len(gzip.compress(script.read_bytes(), 6)) for script in scripts}
    assert "live.js" in sizes
    assert sum(sizes.values()) <= 100_000, sizes
