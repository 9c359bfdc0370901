"""What is told to people: notes and failures, always on stderr, never with somebody else's control characters."""

import sys
import unicodedata
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.client import GpuschedError


_IS_QUIET = False


def be_quiet(is_quiet: bool) -> None:
    """Whether notes are left out; failures never are."""
    global _IS_QUIET
    _IS_QUIET = is_quiet


def note(text: str) -> None:
    """One line on stderr, unless nobody wants notes."""
    if not _IS_QUIET:
        _line(text)


def failure(error: "GpuschedError") -> None:
    """The sentence, the fields at fault if there are several, what can be done, and what to quote to an admin."""
    _line(f"error: {error}")
    if len(error.errors) > 1:
        for problem in error.errors:
            _line(f"  {problem.field}: {problem.message}")
    if error.next_step:
        _line(f"next:  {error.next_step}")
    if error.request_id and error.exit_code == 1:
        _line(f"request id: {error.request_id}")


def _line(text: str) -> None:
    with suppress(OSError):  # of a terminal that was closed; what is to be done goes on
        print(printable(text), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Names and sentences come from other users: an escape sequence in them must not reach the terminal."""
    return "".join(ch if ch == "\n" or unicodedata.category(ch)[0] != "C" else _visible(ch) for ch in text)


def _visible(character: str) -> str:
    # Format characters such as joiners of emoji are harmless, but not those that reorder what is around them.
    is_joiner = character in "\u200c\u200d"
    return character if is_joiner else character.encode("unicode_escape").decode()
