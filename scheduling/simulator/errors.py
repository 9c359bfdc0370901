"""The one error of what simulations read: it names the file and, where there is one, the line and the column."""

from pathlib import Path


class InputError(ValueError):
    """A file, or an option, that a simulation cannot use; its text is a sentence for the user."""


def bad_line(path: Path, line: int, column: str, problem: str) -> InputError:
    """`line` counts from 1, the header included."""
    return InputError(f"{path}, line {line}, column {column!r}: {problem}.")
