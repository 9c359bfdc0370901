"""The code blocks of the documents, and the commands that stand in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.docs.reading import ROOT

_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+) -->\n\s*)?^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^ *```$", re.S | re.M
)
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'.*?^\1$", re.S | re.M)
RUN = ("sh", "python")
_END = set("();<>|&")
# Words that may stand before a command.
_PREFIXES = {"if", "until", "while", "do", "then", "else", "!", "exec", "sudo", "xargs", "-r", "-n", "1"}


@dataclass(frozen=True)
class Block:
    """One block; `why_not` is the reason, from the comment above it, for which no test runs it."""

    document: Path
    kind: str
    text: str
    why_not: str | None


def documents() -> list[Path]:
    """All that people read, but for the reference, whose examples are in the code's help."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if path.parent.name != "reference")


def blocks(document: Path) -> list[Block]:
    found = _BLOCK.finditer(document.read_text())
    return [Block(document, one["kind"], _unindented(one["text"], one["indent"]), one["why"]) for one in found]


def is_run(block: Block) -> bool:
    """By tests/e2e/test_guides.py."""
    return block.kind in RUN and block.why_not is None


def _unindented(text: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.M)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell text, without redirections; what the shell would fill in stays as it is."""
    for line in _lines(_HERE_DOCUMENT.sub("", text)):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if word and set(word) <= _END:
                yield from _command(words)
                words = []
            else:
                words.append(word)
        yield from _command(words)


def _lines(text: str) -> Iterator[str]:
    """Lines, joined where one ends within quotes or with a backslash."""
    pending = ""
    for line in text.replace("\\\n", " ").splitlines():
        pending = f"{pending}\n{line}" if pending else line
        try:
            shlex.split(pending, comments=True)
        except ValueError:
            continue
        yield pending
        pending = ""
    if pending:
        raise ValueError(f"quotes are not closed: {pending}")


def _command(words: list[str]) -> Iterator[list[str]]:
    rest = [*words, "1"] if "xargs" in words else words  # which takes what it is given as arguments
    while rest and (rest[0] in _PREFIXES or re.match(r"[A-Za-z_]\w*=", rest[0])):
        rest = rest[1:]
    if rest:
        yield rest
