"""Check the documents: named files and tests exist, links resolve, decisions are short (A54)."""

import re
from pathlib import Path

import pytest

from tests.docs.reading import ROOT, text_of


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(name: str):
    """A54."""
    targets = set(re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), re.M))
    code = " ".join(re.findall(r"`[^`]+`|```.*?```", text_of(name), re.S))
    named = set(re.findall(r"\bmake ([a-z][\w-]*)", code))
    assert named and named <= targets


def test_named_files_exist():
    inside = re.compile(r"(?<![\w./-])((?:\w+/)+[\w-]+\.(?:py|md|sh|service|toml|txt))\b")
    for document in documents():
        for path in inside.findall(document.read_text()):
            assert any((folder / path).exists() for folder in (ROOT, document.parent)), f"{document.name} names {path}"


def test_named_tests_exist():
    existing = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        existing |= set(re.findall(r"\bdef (test_\w+)", path.read_text())) | {path.stem}
    for document in documents():
        named = set(re.findall(r"\b(test_\w+)", document.read_text()))
        assert named <= existing, f"{document.name} names {sorted(named - existing)}"


def _anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_relative_links_resolve():
    for document in documents():
        prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", prose):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = document.parent / name if name else document
            assert target.exists(), f"{document.name} links to {link}"
            assert not anchor or anchor in _anchors(target), f"{document.name} links to {link}"


# --- decisions --------------------------------------------------------------------------------------------------------


def test_decisions_are_short_and_numbered():
    paths = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [path.name[:4] for path in paths] == [f"{number:04d}" for number in range(1, len(paths) + 1)]
    for path in paths:
        text = path.read_text()
        assert re.match(rf"# {path.name[:4]}\. ", text), path.name
        assert re.findall(r"^## (.*)$", text, re.M) == ["Context", "Decision", "Consequence"], path.name
        assert len(text.splitlines()) <= 50, path.name


def test_threats_have_tests():
    """Each row of the threat model names tests; `test_named_tests_exist` checks that they exist."""
    rows = [line for line in text_of("docs/threat-model.md").splitlines() if re.match(r"\| (?!threat|-)", line)]
    assert len(rows) > 40
    assert [row for row in rows if not re.search(r"`test_\w+`[^|]*\|$", row)] == []
