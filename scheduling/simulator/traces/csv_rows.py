"""Read files of comma-separated values, compressed or not; errors name the line and the column."""

import csv
import gzip
import zlib
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TextIO, cast

from scheduling.simulator.errors import InputError, bad_line

# Milliseconds of 30,000 years. Sums of larger numbers are infinite in the end, and the figures no numbers.
MAX_NUMBER = 1e15


class Row:
    """One line: its fields by the names in the header, each parsed as the type that the caller needs."""

    __slots__ = ("_fields", "line", "path")

    def __init__(self, path: Path, line: int, fields: dict[str, str]) -> None:
        self.path, self.line, self._fields = path, line, fields

    def text(self, column: str) -> str:
        """Return the text of a field; empty if the line or the file has no such field."""
        return self._fields.get(column, "").strip()

    def number(self, column: str, *, minimum: float = 0.0) -> float:
        """Return a field as a number. Raises InputError unless it is at least `minimum` and at most MAX_NUMBER."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.bad(column, f"{text[:50]!r} is not a number") from None
        if not isfinite(value) or value < minimum:
            raise self.bad(column, f"{text[:50]} is not a number of at least {minimum:g}")
        if value > MAX_NUMBER:
            raise self.bad(column, f"{text[:50]} is more than {MAX_NUMBER:g}")
        return value

    def integer(self, column: str, *, minimum: int = 0) -> int:
        value = self.number(column, minimum=minimum)
        if value != int(value):
            raise self.bad(column, f"{self.text(column)} is not a whole number")
        return int(value)

    def seconds(self, column: str) -> float:
        """Return a time, given as seconds or as a date and time; one without a zone is in UTC."""
        text = self.text(column)
        try:
            return self.number(column, minimum=-1e12)
        except InputError:
            return instant(text, self.bad(column, f"{text[:50]!r} is neither seconds nor a date and time"))

    def bad(self, column: str, problem: str) -> InputError:
        return bad_line(self.path, self.line, column, problem)


def read_rows(path: Path, needed: Collection[str]) -> Iterator[Row]:
    """Yield the lines of a file after its header; files ending in .gz are uncompressed.

    Raises InputError if a needed column is missing or the file is not such a table, OSError if it cannot be read.
    """
    with _opened(path) as file:
        reader = csv.DictReader(file, restkey="", restval="", strict=True)
        try:
            missing = [column for column in needed if column not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}, line 1: there is no column {missing[0]!r}.")
            for fields in reader:
                yield Row(path, reader.line_num, {key: value for key, value in fields.items() if key})
        except (csv.Error, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as problem:
            raise InputError(f"{path}, after line {reader.line_num}: it is not a table ({problem}).") from problem


def instant(text: str, problem: InputError) -> float:
    """Return the seconds since the epoch of a date, or a date and time; raises `problem` if it is neither."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise problem from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")
