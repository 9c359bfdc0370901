"""Code blocks of the documents, and the commands in them."""

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
# Words that may precede a command.
_PREFIXES = {"if", "until", "while", "do", "then", "else", "!", "exec", "sudo", "xargs", "-r", "-n", "1"}


@dataclass(frozen=True)
class Block:
    """A code block; `why_not` is the reason why no test runs it, from the comment above it."""

    document: Path
    kind: str
    text: str
    why_not: str | None


def documents() -> list[Path]:
    """Return all documents except the reference, whose examples come from the code's help texts."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in paths if path.parent.name != "reference")


def blocks(document: Path) -> list[Block]:
    matches = _BLOCK.finditer(document.read_text())
    return [
        Block(document, match["kind"], _unindented(match["text"], match["indent"]), match["why"]) for match in matches
    ]


def is_run(block: Block) -> bool:
    """Return whether tests/e2e/test_guides.py runs the block."""
    return block.kind in RUN and block.why_not is None


def _unindented(text: str, indent: str) -> str:
    return re.sub(rf"^{indent}", "", text, flags=re.M)


def commands(text: str) -> Iterator[list[str]]:
    """Yield the tokens of each command of a shell text, without redirections or expansion."""
    for line in _lines(_HERE_DOCUMENT.sub("", text)):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        tokens: list[str] = []
        for token in lexer:
            if token and set(token) <= _END:
                yield from _command(tokens)
                tokens = []
            else:
                tokens.append(token)
        yield from _command(tokens)


def _lines(text: str) -> Iterator[str]:
    """Yield lines, joined if one ends within quotes or with a backslash."""
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


def _command(tokens: list[str]) -> Iterator[list[str]]:
    remaining = [*tokens, "1"] if "xargs" in tokens else tokens  # xargs adds arguments
    while remaining and (remaining[0] in _PREFIXES or re.match(r"[A-Za-z_]\w*=", remaining[0])):
        remaining = remaining[1:]
    if remaining:
        yield remaining
