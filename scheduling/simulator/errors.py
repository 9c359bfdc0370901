"""The one error of simulation input: it names the file and, if there is one, the line and the column."""

from pathlib import Path


class InputError(ValueError):
    """A file or an option that a simulation cannot use; its text is a sentence for the user."""


def bad_line(path: Path, line: int, column: str, problem: str) -> InputError:
    """Return the error of a field. `line` counts from 1, the header included."""
    return InputError(f"{path}, line {line}, column {column!r}: {problem}.")
