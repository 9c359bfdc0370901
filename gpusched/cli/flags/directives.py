"""Finds the lines of a script that say what it needs: `#GPUSCHED` and `#SBATCH`, up to its first line of code."""

import shlex
from dataclasses import dataclass
from itertools import takewhile

from gpusched.client.errors import Invalid

OURS, SLURMS = "#GPUSCHED", "#SBATCH"


@dataclass(frozen=True, slots=True)
class Line:
    """`words` as a shell would split them; `where` is file:number, for messages."""

    mark: str
    words: tuple[str, ...]
    where: str


def lines_of(script: str, name: str) -> list[Line]:
    """The lines in their order. Raises Invalid for one with a quote that nothing ends."""
    head = takewhile(lambda line: not line.strip() or line.startswith("#"), script.splitlines())
    found = []
    for number, line in enumerate(head, start=1):
        mark, *rest = line.split(maxsplit=1) or [""]
        if mark in (OURS, SLURMS):
            found.append(Line(mark, _words("".join(rest), f"{name}:{number}"), f"{name}:{number}"))
    return found


def _words(text: str, where: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text, comments=True))
    except ValueError as error:
        raise Invalid(f"{where}: {text.strip()}: {error}") from error
