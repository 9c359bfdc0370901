"""Tables and marked parts of Markdown documents: what every generator of the reference writes with."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

COMMAND = "make reference"
HEAD = f"<!-- Written from the code by `{COMMAND}`: edit the code, not this file. -->\n\n"
_PART = re.compile(r"(<!-- from the code: ([a-z-]+) -->\n).*?(<!-- until here -->)", re.S)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars in cells are escaped, ends of lines become blanks."""
    lines = ["| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in (head, *rows)]
    return lines[0] + "|---" * len(head) + "|\n" + "".join(lines[1:])


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def fill_parts(text: str, makers: Mapping[str, Callable[[], str]]) -> str:
    """The document with each marked part made anew. KeyError: nobody makes a part of that name."""
    return _PART.sub(lambda found: f"{found[1]}{makers[found[2]]()}{found[3]}", text)


def part_names(text: str) -> list[str]:
    return [name for _, name, _ in _PART.findall(text)]


def anchor(heading: str) -> str:
    """What a link to a heading ends with."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def add_links(text: str, folder: str = "") -> str:
    """`docs/page.md, Heading` and `docs/page.md` in a text as links; `folder`: from the document to docs/."""

    def link(found: re.Match[str]) -> str:
        page, heading = found[1], found[2]
        return f"[{heading}]({folder}{page}#{anchor(heading)})" if heading else f"[{page}]({folder}{page})"

    return re.sub(r"\bdocs/([\w-]+\.md)(?:, ([A-Z][\w ]*\w),?)?", link, text)


def code(text: str) -> str:
    return f"`{text}`"
