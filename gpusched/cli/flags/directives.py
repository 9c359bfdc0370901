"""Parse the directives of a script, `#GPUSCHED` and `#SBATCH`, up to its first line of code."""

import shlex
from dataclasses import dataclass
from itertools import takewhile

from gpusched.client.errors import Invalid

OURS, SLURMS = "#GPUSCHED", "#SBATCH"


@dataclass(frozen=True, slots=True)
class Line:
    """`words`: split as a shell would; `location`: file:number, for messages."""

    mark: str
    words: tuple[str, ...]
    location: str


def lines_of(script: str, name: str) -> list[Line]:
    """Return the directives in order. Raises Invalid for an unclosed quote."""
    head = takewhile(lambda line: not line.strip() or line.startswith("#"), script.splitlines())
    directives = []
    for number, line in enumerate(head, start=1):
        mark, *text = line.split(maxsplit=1) or [""]
        if mark in (OURS, SLURMS):
            directives.append(Line(mark, _split("".join(text), f"{name}:{number}"), f"{name}:{number}"))
    return directives


def _split(text: str, location: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(_without_comment(text)))
    except ValueError as error:
        raise Invalid(f"{location}: {text.strip()}: {error}") from error


def _without_comment(text: str) -> str:
    """Return the text before its comment, which begins at a word that begins with #, as in a shell: `a#b` has none."""
    quote, is_escaped, begins_word = "", False, True
    for position, char in enumerate(text):
        if char == "#" and begins_word:
            return text[:position]
        begins_word = char.isspace() and not (quote or is_escaped)
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
    return text
