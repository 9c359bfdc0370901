"""Read sections, tables and terms in backticks from the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def section(name: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of the same or a higher level."""
    level = heading.split(" ")[0]
    match = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text_of(name), re.M | re.S)
    assert match, f"{name} has no heading '{heading}'"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """Return the body rows of all tables of a text, as cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row, line in zip(cells, lines, strict=True) if row[0].startswith(("`", "[`")) and "---" not in line]


def first_words(text: str) -> list[str]:
    """Return the term in backticks at the beginning of each row."""
    return [row[0].split("`")[1] for row in rows(text)]
