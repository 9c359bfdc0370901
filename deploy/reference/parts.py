"""Tables and marked parts of Markdown documents, for all generators of the reference."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

COMMAND = "make reference"
HEAD = f"<!-- Written from the code by `{COMMAND}`: edit the code, not this file. -->\n\n"
_PART = re.compile(r"(<!-- from the code: ([a-z-]+) -->\n).*?(<!-- until here -->)", re.S)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; escape bars in cells, and replace line ends by spaces."""
    lines = ["| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in (head, *rows)]
    return lines[0] + "|---" * len(head) + "|\n" + "".join(lines[1:])


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def fill_parts(text: str, makers: Mapping[str, Callable[[], str]]) -> str:
    """Return the document with each marked part regenerated. Raise KeyError for a part without a generator."""
    return _PART.sub(lambda match: f"{match[1]}{makers[match[2]]()}{match[3]}", text)


def part_names(text: str) -> list[str]:
    return [name for _, name, _ in _PART.findall(text)]


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def add_links(text: str, folder: str = "") -> str:
    """Replace `docs/page.md, Heading` and `docs/page.md` by links; `folder`: from the document to docs/."""

    def link(match: re.Match[str]) -> str:
        page, heading = match[1], match[2]
        return f"[{heading}]({folder}{page}#{anchor(heading)})" if heading else f"[{page}]({folder}{page})"

    return re.sub(r"\bdocs/([\w-]+\.md)(?:, ([A-Z][\w ]*\w),?)?", link, text)


def code(text: str) -> str:
    return f"`{text}`"
