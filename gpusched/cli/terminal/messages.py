"""Print notes and failures for people, always to stderr, and escape control characters of other users."""

import sys
import unicodedata
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpusched.client import GpuschedError


_IS_QUIET = False
# The server's next step after a token that it refuses is for those who write requests by hand.
_HEADER = "send Authorization: "
_LOG_IN = "get a token by gpusched login; --token-file, GPUSCHED_TOKEN and GPUSCHED_TOKEN_FILE come before that one"


def be_quiet(is_quiet: bool) -> None:
    """Suppress notes, or not; failures are always printed."""
    global _IS_QUIET
    _IS_QUIET = is_quiet


def note(text: str) -> None:
    """Print a line to stderr, unless notes are suppressed."""
    if not _IS_QUIET:
        _line(text)


def failure(error: "GpuschedError") -> None:
    """Print the sentence, the invalid fields if there are several, the next step, and the request id for an admin."""
    _line(f"error: {error}")
    if len(error.errors) > 1:
        for problem in error.errors:
            _line(f"  {problem.field}: {problem.message}")
    if next_step := _LOG_IN if error.next_step.startswith(_HEADER) else error.next_step:
        _line(f"next:  {next_step}")
    if error.request_id and error.exit_code == 1:
        _line(f"request id: {error.request_id}")


def _line(text: str) -> None:
    with suppress(OSError):  # the terminal was closed; the command itself continues
        print(printable(text), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Escape control characters: names and sentences of other users must not send escape sequences to the terminal."""
    return "".join(ch if ch == "\n" or unicodedata.category(ch)[0] != "C" else _visible(ch) for ch in text)


def _visible(character: str) -> str:
    # Format characters such as emoji joiners are harmless, except those that reorder the text around them.
    is_joiner = character in "\u200c\u200d"
    return character if is_joiner else character.encode("unicode_escape").decode()
